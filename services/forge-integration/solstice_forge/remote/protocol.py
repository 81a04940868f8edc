"""What is asked of a forge, and how it can end: values for everybody who calls one. Pure.

A module per API (`github`, `gitlab`, and `gitea_family` for Gitea and Forgejo) has one shape, `Dialect`: it turns a question into a `ForgeCall`,
and knows how to read the answer. `remote.http.Remote` makes the call. No module of a forge does any I/O.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from solstice_common.messages import Source as Origin

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Done(Generic[T_co]):
    """The forge did it, or told it."""

    value: T_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Not now: the forge is away, slow or full. `at`: no call to it makes sense before, in seconds since the epoch."""

    at: float
    why: str
    limited: bool = False
    """It was the forge's limit, not its trouble."""
    perhaps_done: bool = False
    """The call went out and no answer came: the forge may have carried it out, or may do so yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    """The forge said no, and will say so again; `detail` is its answer, without credentials."""

    status: int
    detail: str


Result = Done[T] | Later | Never
"""How a call ended. Matched by the caller, who knows what to do."""


class Unreadable(ValueError):
    """An answer that is not what the forge's documentation says; `ForgeCall.read` raises it, or KeyError and the like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeCall(Generic[T]):
    """One HTTP call: `path` is below the API's URL, percent-encoded where it holds names."""

    method: str
    path: str
    read: Callable[[Any], T]
    """The value of the answer's JSON (None when it has no body). Whatever it raises counts as a truncated answer."""
    linked: bool = False
    """It is a page of a list: `read` gets the JSON as `LinkedPage`."""
    query: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    body: Mapping[str, object] | None = None
    """JSON to send."""
    unread: bool = False
    """The answer's status says all: its body is not looked at, and `read` gets None."""
    repository: str = ""
    """`owner/name` that it is about: a GitHub App's token is narrowed to it."""
    permissions: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """What a GitHub App's token needs for it (`{"statuses": "write"}`); nothing: reading the metadata will do."""
    as_app: bool = False
    """By the key of a GitHub App itself, not by a token of an installation."""
    already: Callable[[int, str], bool] = field(default=lambda _status, _detail: False)
    """Whether a refusal (status, the forge's words) means that everything is as wished."""

    @property
    def writes(self) -> bool:
        return self.method not in {"GET", "HEAD"}


def is_missing(status: int, _detail: str) -> bool:
    """`ForgeCall.already` of a question to which 404 is an answer; `read` gets None."""
    return status == 404  # noqa: PLR2004  Not Found


def commit_id(given: object) -> str:
    """A full commit id out of an answer; Unreadable when it is none."""
    if not isinstance(given, str) or not _COMMIT.fullmatch(given):
        raise Unreadable("no commit id")
    return given


def name_in(given: object) -> str:
    """A name out of an answer; Unreadable when it is none."""
    if not isinstance(given, str) or not given:
        raise Unreadable("no name")
    return given


def nothing(_document: object) -> None:
    """`ForgeCall.read` of a call whose answer nobody needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list; `next` is the call for the one after it."""

    items: tuple[T, ...]
    next: ForgeCall["Page[T]"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedPage:
    """The JSON of one page, and the query of the page after it as the forge's `Link` header tells it (RFC 8288)."""

    document: Any
    next: Mapping[str, str] | None


def paged(call: ForgeCall[Any], item: Callable[[Any], T]) -> ForgeCall[Page[T]]:
    """The call for one page of a list; `item` reads one of its objects. Only the query of the next page is believed."""

    def read(linked: LinkedPage) -> Page[T]:
        if not isinstance(linked.document, list):
            raise Unreadable("no list")
        following = None if linked.next is None else paged(replace(call, query=linked.next), item)
        return Page(items=tuple(item(each) for each in linked.document), next=following)

    return replace(call, read=read, linked=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStatus:
    """What a commit shall show, in our words; each forge's module puts it into its own."""

    repository: str
    """`owner/name`, on GitLab `group/sub/name`."""
    commit_sha: str
    context: str
    state: str
    """A state of `jobstatus.v1`, of a job or a run."""
    description: str
    occurred_at: str
    """RFC 3339, UTC."""
    target_url: str | None = None
    ref: str | None = None
    """The full ref, where it is known."""
    external_id: str = ""
    """Our id of what is told about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequestHead:
    """A change request as the forge knows it now."""

    commit_sha: str
    is_fork: bool | None
    """None: the forge does not tell, so it counts as one."""
    is_open: bool
    base_ref: str | None = None
    head_ref: str | None = None
    head_repo_url: str | None = None
    """Where a fork is; None when it is none, is gone, or the forge does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeAccount:
    """An account at a forge: GitLab asks for its number, the others for its name."""

    login: str | None
    id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPace:
    """How often we may call: `burst` at once, and one more every `interval_seconds`; `at_once` calls under way."""

    interval_seconds: float
    burst: int
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCredentials:
    """A GitHub App: it signs in by its key, and acts through tokens of its installations."""

    id: int
    private_key: str = field(repr=False)
    """PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeAccess:
    """One forge, and by what right we call it."""

    name: str
    """Of the source, for logs."""
    origin: Origin
    url: str
    """The forge's base URL, as people know it: `https://forge.example`."""
    token: str | None = field(default=None, repr=False)
    app: AppCredentials | None = None


class Dialect(Protocol):
    """The shape of the module of every API."""

    PACE: CallPace
    """Of calls that write, for one source."""

    def api_url(self, url: str) -> str:
        """Where the API is, of a forge whose base URL is `url`; without a trailing slash."""
        ...

    def headers(self, token: str) -> Mapping[str, str]:
        """Of every call: what we accept, and the credentials."""
        ...

    def set_status(self, status: CommitStatus) -> ForgeCall[None]:
        """Have the commit show this."""
        ...

    def find_commit(self, repository: str, ref: str) -> ForgeCall[str]:
        """The commit that `refs/heads/...` or `refs/tags/...` leads to, also through an annotated tag."""
        ...

    def find_head(self, repository: str, number: int) -> ForgeCall[ChangeRequestHead]:
        """What a change request asks to be merged."""
        ...

    def may_write(self, repository: str, account: ForgeAccount) -> ForgeCall[bool] | None:
        """Whether this person may push to the repository; None: the forge cannot be asked about who is not named."""
        ...
