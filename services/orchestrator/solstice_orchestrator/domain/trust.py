"""Whether a request's code is trusted: its author may push to the repository. Pure."""

from collections.abc import Set as AbstractSet
from typing import Final

from solstice_common.messages import JobRequestV1, Source

V1_TRUST: Final = frozenset({Source.MANUAL})
"""Sources whose requests are trusted when they do not say; the default."""


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
