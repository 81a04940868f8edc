"""Calls to a forge and their results, as values. Pure.

A module per API (`github`, `gitlab`, and `gitea_family` for Gitea and Forgejo) implements `ForgeDialect`: it turns a
question into a `ForgeCall`, and knows how to read the answer. `remote.http.Remote` makes the call. No module of a forge
does any I/O.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from solstice_common.messages import Source, TestCountsV1

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CallDone(Generic[T_co]):
    """The forge did it, or answered the question."""

    value: T_co


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPostponed:
    """The call did not succeed now: the forge is unreachable, slow or full.

    `at`: no call to it makes sense before, in seconds since the epoch.
    """

    at: float
    why: str
    limited: bool = False
    """Whether the forge's limit was the reason."""
    perhaps_done: bool = False
    """Whether the call went out without an answer: the forge may have carried it out, or may do so yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """The forge refused, and will refuse again; `detail` is its answer, without credentials."""

    status: int
    detail: str


Result = CallDone[T] | CallPostponed | CallRefused
"""How a call ended; the caller matches it and decides what to do."""


class Unreadable(ValueError):
    """An answer that contradicts the forge's documentation.

    `ForgeCall.read` raises it, or KeyError and the like.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeCall(Generic[T]):
    """One HTTP call; `path` is below the API's URL, with names percent-encoded."""

    method: str
    path: str
    read: Callable[[Any], T]
    """Reads the answer's JSON (None when it has no body); any exception counts as a truncated answer."""
    linked: bool = False
    """Whether it is a page of a list: `read` gets the JSON as `LinkedPage`."""
    query: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)
    body: Mapping[str, object] | None = None
    """The JSON to send."""
    unread: bool = False
    """Whether the answer's status is enough: its body is ignored, and `read` gets None."""
    repository: str = ""
    """The repository of the call, `owner/name`, to which a GitHub App's token is narrowed."""
    permissions: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)
    """The permissions for a GitHub App's token (`{"statuses": "write"}`); empty: reading the metadata is enough."""
    as_app: bool = False
    """Whether the key of the GitHub App signs the call, not a token of an installation."""
    already: Callable[[int, str], bool] = field(default=lambda _status, _detail: False)
    """Whether a refusal (status, the forge's text) means that the result already holds."""

    @property
    def writes(self) -> bool:
        return self.method not in {"GET", "HEAD"}


def is_missing(status: int, _detail: str) -> bool:
    """`ForgeCall.already` of a question to which 404 is an answer; `read` gets None."""
    return status == 404  # noqa: PLR2004  Not Found


def commit_id(value: object) -> str:
    """Return a full commit id from an answer; raise Unreadable when it is none."""
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise Unreadable("no commit id")
    return value


def name_in(value: object) -> str:
    """Return a name from an answer; raise Unreadable when it is none."""
    if not isinstance(value, str) or not value:
        raise Unreadable("no name")
    return value


def nothing(_document: object) -> None:
    """`ForgeCall.read` for an answer that is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list; `next` is the call for the one after it."""

    items: tuple[T, ...]
    next: ForgeCall["Page[T]"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedPage:
    """The JSON of one page, and the next page's query.

    The query comes from the `Link` header (RFC 8288).
    """

    document: Any
    next: Mapping[str, str] | None


def paged(call: ForgeCall[Any], item: Callable[[Any], T]) -> ForgeCall[Page[T]]:
    """Return the call for one page of a list; `item` reads one of its objects.

    Only the query of the next page's link is used.
    """

    def read(linked: LinkedPage) -> Page[T]:
        if not isinstance(linked.document, list):
            raise Unreadable("no list")
        following = None if linked.next is None else paged(replace(call, query=linked.next), item)
        return Page(items=tuple(item(each) for each in linked.document), next=following)

    return replace(call, read=read, linked=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStatus:
    """What a commit shows, the same for all forges; each forge's module translates it."""

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
    """The full ref, if it is known."""
    external_id: str = ""
    """Our id of the job or run."""
    tests: TestCountsV1 | None = None
    """What its test reports say; the failed tests in it are a job's own text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequestHead:
    """The current head of a change request at the forge."""

    commit_sha: str
    is_fork: bool | None
    """None: the forge does not say, so it counts as one."""
    is_open: bool
    base_ref: str | None = None
    head_ref: str | None = None
    head_repo_url: str | None = None
    """The URL of a fork; None when it is none, is gone, or the forge does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeAccount:
    """An account at a forge: GitLab asks for its number, the others for its name."""

    login: str | None
    id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPace:
    """How often we may call.

    `burst` calls at once and one more every `interval_seconds`; at most `at_once` calls under way.
    """

    interval_seconds: float
    burst: int
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCredentials:
    """The credentials of a GitHub App.

    It signs in with its key, and uses tokens of its installations.
    """

    id: int
    private_key: str = field(repr=False)
    """PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeAccess:
    """One forge and our credentials for it."""

    name: str
    """The source's name, for logs."""
    origin: Source
    url: str
    """The forge's base URL for people: `https://forge.example`."""
    token: str | None = field(default=None, repr=False)
    app: AppCredentials | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCalls:
    """The calls of a forge that shows statuses of Apps as check runs."""

    set_check: Callable[[CommitStatus, int | None], ForgeCall[int]]
    """Makes a check run, or updates the one with this id, and returns its id."""
    forbids_checks: Callable[[int, str], bool]
    """Whether a refusal (status, the forge's text) means that the App has no right to check runs."""


class ForgeDialect(Protocol):
    """The interface of every API's module."""

    PACE: CallPace
    """The pace of writing calls for one source."""
    CHECKS: CheckCalls | None
    """None: the forge has no check runs, only commit statuses."""

    def api_url(self, url: str) -> str:
        """Return the API's URL for a forge's base URL, without a trailing slash."""
        ...

    def headers(self, token: str) -> Mapping[str, str]:
        """Return the headers of every call: the accepted type, and the credentials."""
        ...

    def set_status(self, status: CommitStatus) -> ForgeCall[None]:
        """Set a status of the commit."""
        ...

    def find_commit(self, repository: str, ref: str) -> ForgeCall[str]:
        """Find the commit of `refs/heads/...` or `refs/tags/...`, also through an annotated tag."""
        ...

    def find_head(self, repository: str, number: int) -> ForgeCall[ChangeRequestHead]:
        """Find the head of a change request."""
        ...

    def may_write(self, repository: str, account: ForgeAccount) -> ForgeCall[bool] | None:
        """Ask whether this person may push to the repository.

        None: the account lacks the name or number that the forge needs.
        """
        ...
