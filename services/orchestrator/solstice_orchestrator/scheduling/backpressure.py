"""Whether intake is held because the store has enough work; requests stay in the queue. Pure."""

from typing import Final

RESUME: Final = 0.8
"""The share of the maximum at which intake resumes."""


def holds_intake(backlog: int, most: int, *, held: bool) -> bool:
    """Whether intake is held at this backlog; `most` 0: never.

    Once held, it resumes when a fifth of the maximum is done.
    """
    if most <= 0:
        return False
    return backlog > most * RESUME if held else backlog >= most
