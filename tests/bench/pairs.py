"""Two ways of doing the same thing, measured in turn, A B A B: the ratio holds when the machine's speed drifts."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Round = Callable[[int], Awaitable[int]]
"""Does one round (numbered from 0, so that it can use fresh names) and returns how many things it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rates in things per second, round by round."""

    what: str
    ours: Sequence[float]
    yardstick: Sequence[float]
    goal: float
    """The ratio that the project asks of itself."""

    @property
    def ratio(self) -> float:
        """Median of the ratios pair by pair."""
        return statistics.median(a / b for a, b in zip(self.ours, self.yardstick, strict=True))


async def compare(what: str, *, ours: Round, yardstick: Round, rounds: int, goal: float) -> Comparison:
    """Measure both `rounds` times in turn, after one uncounted round of each."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, rounds):
        for way, kept in zip((ours, yardstick), rates, strict=True):
            started = time.perf_counter()
            count = await way(number)
            rate = count / (time.perf_counter() - started)
            if number >= 0:
                kept.append(rate)
    return Comparison(what=what, ours=rates[0], yardstick=rates[1], goal=goal)
