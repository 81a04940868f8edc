"""Whether intake is paused because the store has enough work; requests stay in the queue. Pure."""

from typing import Final

RESUME: Final = 0.8
"""The share of the maximum at which intake resumes."""


def pauses_intake(backlog: int, most: int, *, paused: bool) -> bool:
    """Return whether intake is paused at this backlog; `most` 0: never.

    Once paused, it resumes when a fifth of the maximum is done.
    """
    if most <= 0:
        return False
    return backlog > most * RESUME if paused else backlog >= most
