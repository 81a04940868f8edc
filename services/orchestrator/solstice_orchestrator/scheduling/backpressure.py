"""How much work the store takes before intake is paused; requests stay in the queue. Pure."""

from typing import Final

RESUME: Final = 0.8
"""The share of the maximum at which intake resumes."""

LEAST_LIMIT: Final = 100
"""Work that is always taken: a speed that was measured in a bad moment must not starve the workers."""


def intake_limit(most: int, *, jobs_per_second: float | None, seconds: float) -> int:
    """Return the backlog at which intake pauses: the work of `seconds` at this speed.

    It is never above `most`. With `seconds` 0, `most` 0 or an unknown speed it is `most`.
    """
    if not most or not seconds or jobs_per_second is None:
        return most
    return int(min(most, max(LEAST_LIMIT, jobs_per_second * seconds)))


def pauses_intake(backlog: int, most: int, *, paused: bool) -> bool:
    """Return whether intake is paused at this backlog; `most` 0: never.

    Once paused, it resumes when a fifth of the maximum is done.
    """
    if most <= 0:
        return False
    return backlog > most * RESUME if paused else backlog >= most
