"""Measures two ways of doing the same thing in turn.

In the order A B A B the ratio holds when the machine's speed drifts.
"""

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Round = Callable[[int], Awaitable[float]]
"""Runs one round and returns its rate in things per second.

Its argument is the round's number, which no other round has.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rates in things per second, round by round."""

    what: str
    ours: list[float]
    yardstick: list[float]
    goal: float
    """The ratio that the project aims at."""
    note: str = ""

    @property
    def ratio(self) -> float:
        """The median of the ratios of the pairs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.yardstick, strict=True))


async def compare(
    what: str,
    *,
    ours: Round,
    yardstick: Round,
    rounds: int,
    goal: float,
    note: Callable[[], str] = str,
) -> Comparison:
    """Measure both `rounds` times in turn, after one uncounted round of each."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, rounds):
        for way, kept in zip((ours, yardstick), rates, strict=True):
            rate = await way(number)
            if number >= 0:
                kept.append(rate)
    return Comparison(what=what, ours=rates[0], yardstick=rates[1], goal=goal, note=note())
