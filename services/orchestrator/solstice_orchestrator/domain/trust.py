"""Whether a request's code is trusted, and which caches it may share. Pure.

It is trusted when its author may push to the repository.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from solstice_common.messages import JobRequestV1, Source

V1_TRUST: Final = frozenset({Source.MANUAL})
"""Sources whose requests are trusted when they do not say; the default."""

BRANCHES: Final = "refs/heads/"
USUAL_DEFAULT_BRANCHES: Final = frozenset({"main", "master", "trunk"})
"""Names taken for the default branch when the request does not name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScope:
    """The runs of a repository that share what they save."""

    is_trusted: bool
    """Whether trusted runs write it."""
    name: str
    """The default branch has the empty name."""

    @property
    def shown(self) -> str:
        """Return it for people: `branch fix`, `change 7`, `change 7, untrusted`."""
        return (self.name or "default branch") + ("" if self.is_trusted else ", untrusted")


DEFAULT_BRANCH: Final = CacheScope(is_trusted=True, name="")


def parse_sources(text: str) -> frozenset[Source]:
    """Read `manual,github`; ValueError for an unknown source."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(Source)):
        raise ValueError(f"{unknown[0]!r} is no source; there are {', '.join(Source)}")
    return frozenset(map(Source, names))


def is_trusted(request: JobRequestV1, v1_trust: AbstractSet[Source] = V1_TRUST) -> bool:
    """Return whether the author of the code may push to the repository.

    A request that does not say so is trusted by its source; a change request that does not say so never is, because its
    publisher knows more than v1 and should have said it.
    """
    if request.trusted is not None:
        return request.trusted
    if request.source is not Source.MANUAL and _names_a_change(request):
        return False
    return request.source in v1_trust


def awaits_approval(request: JobRequestV1) -> bool:
    """Return whether its jobs wait until an authorised person approves them."""
    return request.needs_approval is True and request.approves is not True


def is_vouched_for(request: JobRequestV1) -> bool:
    """Return whether a person approves this very commit before any job starts.

    The code remains untrusted nevertheless.
    """
    return request.needs_approval is True or request.approves is True


def _names_a_change(request: JobRequestV1) -> bool:
    return (
        request.change_number is not None
        or request.head_repo_url is not None
        or request.needs_approval is True
    )


def realm(request: JobRequestV1, v1_trust: AbstractSet[Source] = V1_TRUST) -> str:
    """Return the namespace of a workflow file's names: the repository's own, or an untrusted author's.

    An untrusted file may use any name, and must not affect the repository's own jobs.
    """
    if is_trusted(request, v1_trust):
        return ""
    return request.head_repo_url or f"#{request.change_number or request.request_id}"


def cache_scopes(request: JobRequestV1, v1_trust: AbstractSet[Source] = V1_TRUST) -> tuple[CacheScope, ...]:
    """Return the scopes whose caches a run may read; it writes the first alone.

    No trusted run reads a scope that an untrusted one writes: the two have no scope in common but the default
    branch's, which is not an untrusted run's first.
    """
    if not is_trusted(request, v1_trust):
        own = (
            f"request {request.request_id}"
            if request.change_number is None
            else f"change {request.change_number}"
        )
        return (CacheScope(is_trusted=False, name=own), DEFAULT_BRANCH)
    if on_default_branch(request):
        return (DEFAULT_BRANCH,)
    return (CacheScope(is_trusted=True, name=_name_of_scope(request)), DEFAULT_BRANCH)


def _name_of_scope(request: JobRequestV1) -> str:
    if request.change_number is not None:
        return f"change {request.change_number}"
    ref = request.ref or ""
    if ref.startswith(BRANCHES):
        return f"branch {ref.removeprefix(BRANCHES)}"
    return f"ref {ref}" if ref else "no ref"


def on_default_branch(request: JobRequestV1) -> bool:
    """Return whether the request is a push to the default branch, where every commit counts.

    The branch that the request names, else one of `USUAL_DEFAULT_BRANCHES`.
    """
    if request.change_number is not None or request.ref is None or not request.ref.startswith(BRANCHES):
        return False
    branch = request.ref.removeprefix(BRANCHES)
    named = request.default_branch
    return branch == named if named is not None else branch in USUAL_DEFAULT_BRANCHES
