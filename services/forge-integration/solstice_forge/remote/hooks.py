"""Questions to forges that record deliveries: our hooks, their failures, and sending again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from solstice_forge.remote.protocol import NO_FIELDS, ForgeCall, Page

PER_PAGE: Final = "100"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOwner:
    """Where hooks are configured: a repository, an organisation, a group or an App."""

    name: str
    """For people: `river/otter`, `organisation river`."""
    path: str
    """The path of its list of hooks."""
    repository: str
    """The repository whose installation a GitHub App uses to ask."""
    shared: bool = False
    """Whether it is an organisation or group; not every token may look there, and not every owner is one."""
    permissions: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One webhook as the forge has it."""

    owner: HookOwner
    path: str
    url: str
    """The URL that it calls."""
    as_app: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a forge to deliver."""

    id: int
    """Later attempts have higher ids."""
    delivery_id: str
    """The id of the delivery, the same for all attempts."""
    event: str
    succeeded: bool
    why: str
    """The forge's description of the result."""
    delivered_at: float | None
    """In seconds since the epoch; None: the forge does not say."""


class HookDialect(Protocol):
    """The interface of every module of a forge that records its deliveries."""

    SPACING_SECONDS: float
    """The time between two requests to send again, for one hook."""

    def hook_owners(self, repository: str) -> tuple[HookOwner, ...]:
        """Return where a repository's hooks may be: itself first, then its owners."""
        ...

    def find_hooks(self, owner: HookOwner) -> ForgeCall[Page[Hook]]:
        """List the hooks of an owner."""
        ...

    def find_attempts(self, hook: Hook) -> ForgeCall[Page[Attempt]]:
        """List the hook's attempts to deliver, newest first."""
        ...

    def send_again(self, hook: Hook, attempt: Attempt) -> ForgeCall[None]:
        """Ask the forge to deliver it once more, under the same delivery id."""
        ...


def calls_us(hook: Hook, source_name: str) -> bool:
    """Whether the hook's URL is ours, behind any proxy: it ends in `/webhooks/SOURCE`."""
    try:
        path = urlsplit(hook.url).path
    except ValueError:
        return False
    return path.rstrip("/").endswith(f"/webhooks/{source_name}")
