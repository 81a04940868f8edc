"""Which requests of a change request a cancel request ends: those made before it. Pure."""

from solstice_common.messages import JobCancelV1, JobRequestV1


def change_key(message: JobRequestV1 | JobCancelV1) -> str | None:
    """Return the key that requests and cancel requests of one change request share.

    None when the message belongs to no change request.
    """
    if message.change_number is None:
        return None
    # No part of it holds a space. The migrations write the same in SQL.
    return f"{message.source} {message.repo_url} #{message.change_number}"


def cancel_applies(cancelled_at: float, requested_at: float) -> bool:
    """Return whether the cancel request ends that request; both times in seconds since the epoch.

    The times when they were made count, not when they arrived: they travel by two queues, and either may be late. At
    equal times the request counts as the later one: a lost build is worse than an unneeded one.
    """
    return requested_at < cancelled_at


def describe_cancel(cancel: JobCancelV1) -> str:
    """Who asked for the cancel, as text for people."""
    return f"/cancel by {cancel.sender}" if cancel.sender else "/cancel in a comment"
