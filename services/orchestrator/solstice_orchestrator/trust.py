"""Whose code a request wants to run: somebody's who may push there, or a stranger's. Pure."""

from solstice_common.messages import JobRequestV1, Source


def is_trusted(request: JobRequestV1) -> bool:
    """Whether the code is by somebody who may push there; a forge that does not say so means no."""
    return request.trusted is True or (request.trusted is None and request.source is Source.MANUAL)


def awaits_approval(request: JobRequestV1) -> bool:
    """Whether its jobs wait until a person who may says that they may run."""
    return request.needs_approval is True and request.approves is not True


def is_vouched_for(request: JobRequestV1) -> bool:
    """Whether no job of it starts before a person has agreed to this very commit; it is a stranger's code all the same."""
    return request.needs_approval is True or request.approves is True


def realm(request: JobRequestV1) -> str:
    """Within what names of a workflow file mean something: one realm of a repository's own, and one for each stranger.

    A stranger's file may name whatever it likes, and must not come between what the repository itself does.
    """
    if is_trusted(request):
        return ""
    return request.head_repo_url or f"#{request.change_number or request.request_id}"
