"""Whose code a request wants to run: somebody's who may push there, or a stranger's. Pure."""

from collections.abc import Set as AbstractSet
from typing import Final

from solstice_common.messages import JobRequestV1, Source

V1_TRUST: Final = frozenset({Source.MANUAL})
"""Sources whose requests are trusted when they do not say, unless the operator says otherwise."""


def parse_sources(text: str) -> frozenset[Source]:
    """`manual,github` as sources; ValueError for what is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(Source)):
        raise ValueError(f"{unknown[0]!r} is no source; there are {', '.join(Source)}")
    return frozenset(map(Source, names))


def is_trusted(request: JobRequestV1, v1_trust: AbstractSet[Source] = V1_TRUST) -> bool:
    """Whether the code is by somebody who may push there; one that does not say so is trusted by its source.

    A change request that does not say so never is: its publisher knows more than v1, and should have said it.
    """
    if request.trusted is not None:
        return request.trusted
    if request.source is not Source.MANUAL and _names_a_change(request):
        return False
    return request.source in v1_trust


def awaits_approval(request: JobRequestV1) -> bool:
    """Whether its jobs wait until a person who may says that they may run."""
    return request.needs_approval is True and request.approves is not True


def is_vouched_for(request: JobRequestV1) -> bool:
    """Whether no job of it starts before a person has agreed to this very commit; it is a stranger's code all the same."""
    return request.needs_approval is True or request.approves is True


def _names_a_change(request: JobRequestV1) -> bool:
    return (
        request.change_number is not None
        or request.head_repo_url is not None
        or request.needs_approval is True
    )


def realm(request: JobRequestV1, v1_trust: AbstractSet[Source] = V1_TRUST) -> str:
    """Within what names of a workflow file mean something: one realm of a repository's own, and one for each stranger.

    A stranger's file may name whatever it likes, and must not come between what the repository itself does.
    """
    if is_trusted(request, v1_trust):
        return ""
    return request.head_repo_url or f"#{request.change_number or request.request_id}"
