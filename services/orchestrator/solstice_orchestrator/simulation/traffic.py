"""Traffic that might be somebody's: many repositories of which few send most, days and nights, short jobs and long ones. Pure."""

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from solstice_common.messages import Priority
from solstice_orchestrator.simulation.trace import TraceJob

Kind = TypeVar("Kind")

HOUR: Final = 3600.0
DAY_HOURS, WEEK_DAYS, WORK_DAYS = 24, 7, 5
RUN_SIZES: Final = (1, 1, 1, 2, 2, 3, 5)
"""Jobs of a run; each as likely."""
CLASSES: Final[Mapping[Priority, float]] = {
    Priority.CRITICAL: 0.01,
    Priority.HIGH: 0.09,
    Priority.DEFAULT: 0.8,
    Priority.LOW: 0.1,
}
SPREAD: Final = 1.0
"""Of the logarithm of how long jobs take: one in six takes more than e times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is wanted."""

    jobs: int
    repositories: int
    over_seconds: float
    labels: Mapping[str, float]
    """The share of each; they need not add up to anything."""
    median_seconds: float = 60.0
    """How long half of the jobs take at most; the mean is 1.65 times as long."""
    zipf: float = 1.1
    """The n-th repository sends as much as the first divided by n to this power (Zipf 1949)."""
    owners: int = 1
    """Of so many, in turn."""
    chained: float = 0.0
    """The share of runs whose jobs each need the one before."""


def generate(traffic: Traffic, rng: random.Random) -> Iterator[TraceJob]:
    """Exactly so many jobs, in the order in which they come; with the same `rng` the same ones."""
    repository = _drawing(
        {
            f"{_owner(number, traffic.owners)}/repository-{number}": number**-traffic.zipf
            for number in range(1, traffic.repositories + 1)
        },
        rng,
    )
    label, priority = _drawing(traffic.labels, rng), _drawing(CLASSES, rng)
    hours = list(accumulate(busy(hour) for hour in range(math.ceil(traffic.over_seconds / HOUR))))
    place, left, run = 0.0, traffic.jobs, 0
    while left:
        size = min(rng.choice(RUN_SIZES), left)
        # The next of so many that are spread evenly over what is left (order statistics of the uniform).
        place += (1.0 - place) * (1.0 - rng.random() ** (size / left))
        from_, class_ = repository(), priority()
        is_chain = size > 1 and rng.random() < traffic.chained
        for position in range(size):
            yield TraceJob(
                at=round(_when(place, hours) * traffic.over_seconds, 3),
                repository=from_,
                label=label(),
                seconds=round(rng.lognormvariate(math.log(traffic.median_seconds), SPREAD), 3),
                priority=class_,
                run=str(run) if size > 1 else "",
                name=f"job-{position}" if is_chain else "",
                needs=(f"job-{position - 1}",) if is_chain and position else (),
            )
        left -= size
        run += 1


def busy(hour: int) -> float:
    """How much comes in that hour since a Monday's midnight: most around two in the afternoon, a quarter of it on weekends."""
    day = 1.0 - 0.8 * math.cos(math.tau * (hour % DAY_HOURS - 2) / DAY_HOURS)
    return day if hour // DAY_HOURS % WEEK_DAYS < WORK_DAYS else day / 4


def _owner(number: int, owners: int) -> str:
    return "owner" if owners == 1 else f"owner-{(number - 1) % owners + 1}"


def _drawing(weights: Mapping[Kind, float], rng: random.Random) -> Callable[[], Kind]:
    """Draws one after the other, each as often as its weight says."""
    kinds, reached = list(weights), list(accumulate(weights.values()))
    return lambda: kinds[bisect(reached, rng.random() * reached[-1], hi=len(kinds) - 1)]


def _when(place: float, hours: Sequence[float]) -> float:
    """The share of the time at which so large a share of everything has come; `hours` add up what comes."""
    share = place * hours[-1]
    hour = bisect(hours, share, hi=len(hours) - 1)
    before = hours[hour - 1] if hour else 0.0
    return (hour + (share - before) / (hours[hour] - before)) / len(hours)
