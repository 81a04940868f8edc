"""A cancel request ends what was asked for of one change request before it, and nothing that was asked for later. Pure."""

from solstice_common.messages import JobCancelV1, JobRequestV1


def change_key(message: JobRequestV1 | JobCancelV1) -> str | None:
    """What all requests of one change request have in common, and the cancel requests them; None: it is of none."""
    if message.change_number is None:
        return None
    # No part of it holds a space. The migrations write the same in SQL.
    return f"{message.source} {message.repo_url} #{message.change_number}"


def cancel_applies(cancel_asked_at: float, request_asked_at: float) -> bool:
    """Whether the cancel request is about that request, both times in seconds since the epoch.

    By when they were asked for, not by when they came to us: they travel by two queues, and either may be late. Of one
    moment the request is the later one: what somebody still waits for is worse to lose than to build.
    """
    return request_asked_at < cancel_asked_at


def describe_cancel(cancel: JobCancelV1) -> str:
    """Who wanted it, for people."""
    return f"/cancel by {cancel.sender}" if cancel.sender else "/cancel in a comment"
