"""Measures two ways of doing the same thing in turn.

In the order A B B A the ratio holds when the machine's speed drifts, and neither always comes after the other.
"""

import gc
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
    goal: float | None
    """The ratio that the project aims at, if at any."""
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
    goal: float | None,
    note: Callable[[], str] = str,
) -> Comparison:
    """Measure both `rounds` times in turn, after one uncounted round of each."""
    rates: dict[Round, list[float]] = {ours: [], yardstick: []}
    for number in range(-1, rounds):
        for way in (ours, yardstick) if number % 2 else (yardstick, ours):
            collect_garbage()
            rate = await way(number)
            if number >= 0:
                rates[way].append(rate)
    return Comparison(what=what, ours=rates[ours], yardstick=rates[yardstick], goal=goal, note=note())


def collect_garbage() -> None:
    """Collect garbage now, and leave what exists out of all later collections.

    Otherwise some measurements would stand still for a search of all imported modules, and some would not, by how many
    objects were made before: such searches were a tenth of a publisher's time.
    """
    gc.collect()
    gc.freeze()
