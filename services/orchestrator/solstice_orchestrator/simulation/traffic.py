"""Generate realistic traffic for simulations. Pure.

Few of many repositories send most jobs, the load follows days and nights, and jobs are short and long.
"""

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
"""Numbers of jobs in a run, equally likely."""
CLASSES: Final[Mapping[Priority, float]] = {
    Priority.CRITICAL: 0.01,
    Priority.HIGH: 0.09,
    Priority.DEFAULT: 0.8,
    Priority.LOW: 0.1,
}
SPREAD: Final = 1.0
"""The deviation of the logarithm of durations: one job in six takes over e times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The parameters of the traffic."""

    jobs: int
    repositories: int
    over_seconds: float
    labels: Mapping[str, float]
    """The weight of each label; the sum may be any number."""
    median_seconds: float = 60.0
    """The median duration; the mean is 1.65 times as long."""
    zipf: float = 1.1
    """Zipf's exponent: repository n sends 1/n to this power of the first's jobs (Zipf 1949)."""
    owners: int = 1
    """The number of owners; repositories are given to them in turn."""
    chained: float = 0.0
    """The share of runs whose jobs each need the one before."""


def generate(traffic: Traffic, rng: random.Random) -> Iterator[TraceJob]:
    """Generate the given number of jobs, in order of arrival.

    The same `rng` gives the same jobs.
    """
    repository = _drawing(
        {
            f"{_owner(number, traffic.owners)}/repository-{number}": number**-traffic.zipf
            for number in range(1, traffic.repositories + 1)
        },
        rng,
    )
    label, priority = _drawing(traffic.labels, rng), _drawing(CLASSES, rng)
    hours = list(accumulate(busy(hour) for hour in range(math.ceil(traffic.over_seconds / HOUR))))
    arrived, left, run = 0.0, traffic.jobs, 0
    while left:
        size = min(rng.choice(RUN_SIZES), left)
        # The next of the remaining jobs, spread uniformly over the remaining time (order statistics of the uniform).
        arrived += (1.0 - arrived) * (1.0 - rng.random() ** (size / left))
        from_, class_ = repository(), priority()
        is_chain = size > 1 and rng.random() < traffic.chained
        for position in range(size):
            yield TraceJob(
                at=round(_when(arrived, hours) * traffic.over_seconds, 3),
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
    """Return the load of an hour, counted from a Monday's midnight.

    The most comes around two in the afternoon; weekends have a quarter of it.
    """
    day = 1.0 - 0.8 * math.cos(math.tau * (hour % DAY_HOURS - 2) / DAY_HOURS)
    return day if hour // DAY_HOURS % WEEK_DAYS < WORK_DAYS else day / 4


def _owner(number: int, owners: int) -> str:
    return "owner" if owners == 1 else f"owner-{(number - 1) % owners + 1}"


def _drawing(weights: Mapping[Kind, float], rng: random.Random) -> Callable[[], Kind]:
    """Return a function that draws values at random by their weights."""
    kinds, reached = list(weights), list(accumulate(weights.values()))
    return lambda: kinds[bisect(reached, rng.random() * reached[-1], hi=len(kinds) - 1)]


def _when(arrived: float, hours: Sequence[float]) -> float:
    """The share of the time by which the share `arrived` of all jobs has come.

    `hours` holds cumulated loads.
    """
    share = arrived * hours[-1]
    hour = bisect(hours, share, hi=len(hours) - 1)
    before = hours[hour - 1] if hour else 0.0
    return (hour + (share - before) / (hours[hour] - before)) / len(hours)
