"""When the store has more to do than it should hold, requests stay with the broker. Pure."""

from typing import Final

RESUME: Final = 0.8
"""Of the most: the rest is what may come in before intake is held again."""


def holds_intake(backlog: int, most: int, *, held: bool) -> bool:
    """Whether intake takes nothing; `most` 0: it always takes. Once held it goes on when a fifth has gone."""
    if most <= 0:
        return False
    return backlog > most * RESUME if held else backlog >= most
