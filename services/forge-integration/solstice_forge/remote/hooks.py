"""What forges that remember their deliveries are asked: which hooks call us, what failed there, to send it again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from solstice_forge.remote.protocol import NOTHING, ForgeCall, Page

PER_PAGE: Final = "100"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOwner:
    """Where hooks are set up: a repository, or what is above it."""

    name: str
    """For people: `river/otter`, `organisation river`."""
    path: str
    """Of its list of hooks."""
    repository: str
    """By whose installation a GitHub App asks."""
    shared: bool = False
    """An organisation or group; not every token may look there, and not every owner is one."""
    permissions: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One webhook as the forge has it."""

    owner: HookOwner
    path: str
    url: str
    """That it calls."""
    as_app: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One time that a forge tried to deliver."""

    id: int
    """Later ones have higher ids."""
    delivery_id: str
    """The id that it came, or would have come, to us by: the same for all attempts."""
    event: str
    succeeded: bool
    why: str
    """What came of it, in the forge's words."""
    delivered_at: float | None
    """In seconds since the epoch; None: the forge does not tell."""


class HookDialect(Protocol):
    """The shape of every module of a forge that can be asked for its deliveries."""

    SPACING_SECONDS: float
    """Between two requests to send something again, for one hook."""

    def hook_owners(self, repository: str) -> tuple[HookOwner, ...]:
        """Where a hook may be that tells of a repository: itself first, then what is above it."""
        ...

    def find_hooks(self, owner: HookOwner) -> ForgeCall[Page[Hook]]:
        """The hooks of a place."""
        ...

    def find_attempts(self, hook: Hook) -> ForgeCall[Page[Attempt]]:
        """What the hook delivered, or did not, newest first."""
        ...

    def send_again(self, hook: Hook, attempt: Attempt) -> ForgeCall[None]:
        """Have the forge deliver it once more, under the same delivery id."""
        ...


def calls_us(hook: Hook, source_name: str) -> bool:
    """Whether the hook's address is ours, whatever proxy stands in front: it ends in `/webhooks/SOURCE`."""
    try:
        path = urlsplit(hook.url).path
    except ValueError:
        return False
    return path.rstrip("/").endswith(f"/webhooks/{source_name}")
