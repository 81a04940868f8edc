"""Forecast the start of a waiting job from durations of recent jobs. Pure.

The forecast is a range, or None.
"""

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Final

FEW_SAMPLES: Final = 3
"""With fewer recent jobs of a repository, those of the whole label are used."""
LOW, HIGH = 0.1, 0.9
"""The quantiles at the two ends of the range."""
CLOCK_SECONDS: Final = 1.0
ONE_SAMPLE_FACTOR: Final = 5.0
"""With a single recent job, others may take a fifth of its time, or five times as long."""
DRAWS: Final = 60
DRAWN_AHEAD: Final = 64
"""Up to so many jobs ahead are sampled one by one.

The average of more is near to the formula's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The duration of a job that ended recently."""

    repository: str
    seconds: float
    """How long it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySlot:
    """The job that uses a slot."""

    repository: str
    for_seconds: float
    """How long it has run so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAhead:
    """How many jobs start before a job of `repository`."""

    repository: str
    own: int
    """Jobs ahead of the same repository."""
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The earliest and latest expected start, in seconds since the epoch."""

    earliest: float
    latest: float


class ForecastAccuracy(StrEnum):
    """How a job's start compares with its forecast."""

    WITHIN = "within"
    EARLY = "early"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCheck:
    """How exact a forecast was."""

    accuracy: ForecastAccuracy
    error_seconds: float
    """Seconds between the start and the range; 0 within it."""


def check_forecast(forecast: Forecast, started_at: float) -> ForecastCheck:
    """Compare a forecast with the start of the job; clocks may differ by a second."""
    if started_at > forecast.latest + CLOCK_SECONDS:
        return ForecastCheck(accuracy=ForecastAccuracy.LATE, error_seconds=started_at - forecast.latest)
    if started_at < forecast.earliest - CLOCK_SECONDS:
        return ForecastCheck(accuracy=ForecastAccuracy.EARLY, error_seconds=forecast.earliest - started_at)
    return ForecastCheck(accuracy=ForecastAccuracy.WITHIN, error_seconds=0.0)


def forecast_slot(
    now: float, slots: int, busy: Sequence[BusySlot], jobs_ahead: JobsAhead, recent: Sequence[Sample]
) -> Forecast | None:
    """Return when a job behind `jobs_ahead` gets one of `slots`; None: there is no forecast.

    Some slots are `busy`. The jobs ahead are assumed to last as long as recent jobs did, in the range of their 10th to
    90th percentile; where several follow each other in one slot that range narrows, as that of an average does. The
    fewer recent jobs there are, the wider it is (`_range_of_one`, `_average`): eight of ten jobs are to start within
    it, even when their durations differ much. It holds if no later job goes before this one.
    """
    if slots <= 0:
        return None
    if jobs_ahead.own + jobs_ahead.others + len(busy) < slots:
        return Forecast(earliest=now, latest=now)
    if not recent:
        return None
    low, high = _each_ahead(jobs_ahead, slots, recent)
    left = [_range_left(each, recent) for each in busy]
    ahead = jobs_ahead.own + jobs_ahead.others
    earliest = _simulate_queue(slots, [shortest for shortest, _ in left], [low] * ahead)
    latest = _simulate_queue(slots, [longest for _, longest in left], [high] * ahead)
    if ahead <= DRAWN_AHEAD:
        drawn = _sampled_starts(slots, busy, jobs_ahead, recent)
        earliest, latest = min(earliest, _quantile(drawn, LOW)), max(latest, _quantile(drawn, HIGH))
    return Forecast(earliest=now + earliest, latest=now + latest)


def remaining_range(
    repository: str, for_seconds: float, recent: Sequence[Sample]
) -> tuple[float, float] | None:
    """Return the shortest and longest time that a running job of the repository still takes.

    It has run for `for_seconds`; None: there is no forecast.
    """
    return _range_left(BusySlot(repository=repository, for_seconds=for_seconds), recent) if recent else None


def durations(recent: Iterable[Sample], repository: str) -> Sequence[float]:
    """Return durations of recent jobs of a repository, shortest first.

    Its own, if there are enough, else all of the label.
    """
    recent = list(recent)
    own = sorted(sample.seconds for sample in recent if sample.repository == repository)
    return own if len(own) >= FEW_SAMPLES else sorted(sample.seconds for sample in recent)


def remaining(each: BusySlot, recent: Sequence[Sample]) -> float:
    """Return how much longer a running job takes on average; 0 beyond all recent jobs.

    Judged by recent jobs that ran at least as long.
    """
    longer = _longer(each, recent)
    return fmean(longer) - each.for_seconds if longer else 0.0


def _range_left(each: BusySlot, recent: Sequence[Sample]) -> tuple[float, float]:
    """Return the least and most time that a running job may still take.

    Judged by recent jobs that ran at least as long.
    """
    longer = _longer(each, recent)
    if longer:
        shortest, longest = _range_of_one(longer)
        return (max(0.0, shortest - each.for_seconds), longest - each.for_seconds)
    # It ran longer than any recent job: it may end now, or run for up to twice that time more.
    return (0.0, 2 * each.for_seconds)


def _longer(each: BusySlot, recent: Sequence[Sample]) -> Sequence[float]:
    """Return durations of recent jobs that are longer than this one so far, shortest first."""
    for known in (durations(recent, each.repository), sorted(sample.seconds for sample in recent)):
        longer = [seconds for seconds in known if seconds > each.for_seconds]
        if longer:
            return longer
    return ()


def _each_ahead(jobs_ahead: JobsAhead, slots: int, recent: Sequence[Sample]) -> tuple[float, float]:
    """Return the shortest and longest time that the jobs ahead take on average."""
    ahead = jobs_ahead.own + jobs_ahead.others
    follow = 1 + ahead / slots
    own = _average(durations(recent, jobs_ahead.repository), follow)
    others = _average(sorted(sample.seconds for sample in recent), follow)
    share = jobs_ahead.own / ahead if ahead else 0.0
    low, high = (
        share * own_seconds + (1 - share) * other_seconds
        for own_seconds, other_seconds in zip(own, others, strict=True)
    )
    return low, high


def _range_of_one(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the shortest and longest time that one more such job takes.

    The 10th and 90th percentile of what was seen, or, where that is further apart, of what a sample of this size says
    about the next value: the prediction interval of a log-normal distribution (Hahn and Meeker, Statistical Intervals,
    section 4.8), since times of jobs differ by factors.
    """
    seen = (_quantile(ordered, LOW), _quantile(ordered, HIGH))
    if len(ordered) == 1:
        return (seen[0] / ONE_SAMPLE_FACTOR, seen[1] * ONE_SAMPLE_FACTOR)
    logs = [math.log(max(seconds, 1e-3)) for seconds in ordered]
    middle, deviation = fmean(logs), stdev(logs)
    reach = _student(len(logs) - 1) * deviation * math.sqrt(1 + 1 / len(logs))
    return (min(seen[0], math.exp(middle - reach)), max(seen[1], math.exp(middle + reach)))


def _average(ordered: Sequence[float], follow: float) -> tuple[float, float]:
    """Return the shortest and longest average time of each of `follow` jobs in a row.

    It varies by those jobs, and by the sample that estimates them: this part counts twice, since a small sample lacks
    the longest jobs.
    """
    mean, (shortest, longest) = fmean(ordered), _range_of_one(ordered)
    reach = math.sqrt(1 / follow + 2 / len(ordered))
    low = max(shortest, mean - (mean - shortest) * reach)
    return (min(low, mean), max(mean, mean + (longest - mean) * reach))


def _student(freedom: int) -> float:
    """Return the 90th percentile of Student's t, or up to 7 % more.

    3.08 for 1, 1.89 for 2, 1.28 for many.
    """
    return 1.2816 * (1 + 0.85 / freedom + 0.55 / freedom**2)


def _sampled_starts(
    slots: int, busy: Sequence[BusySlot], jobs_ahead: JobsAhead, recent: Sequence[Sample]
) -> Sequence[float]:
    """Seconds until the start, in simulated queues drawn from recent jobs, shortest first (the bootstrap).

    Each queue has its own sample, drawn from the recent jobs, so that chance in these counts for less.
    """
    rng = random.Random(0)  # noqa: S311  the same facts give the same forecast; no secret
    own, others = durations(recent, jobs_ahead.repository), [sample.seconds for sample in recent]
    longer = [_longer(each, recent) for each in busy]
    starts = []
    for _ in range(DRAWS):
        of_own, of_others = rng.choices(own, k=len(own)), rng.choices(others, k=len(others))
        left = [
            rng.choice(known) - each.for_seconds if known else rng.uniform(0, 2 * each.for_seconds)
            for each, known in zip(busy, longer, strict=True)
        ]
        ahead = [*rng.choices(of_own, k=jobs_ahead.own), *rng.choices(of_others, k=jobs_ahead.others)]
        rng.shuffle(ahead)
        starts.append(_simulate_queue(slots, left, ahead))
    return sorted(starts)


def _simulate_queue(slots: int, left: Iterable[float], ahead: Iterable[float]) -> float:
    """Seconds until a job behind others of these durations gets a slot, in this order."""
    free = sorted([*left, *[0.0] * slots])[-slots:]
    heapq.heapify(free)
    for seconds in ahead:
        heapq.heapreplace(free, free[0] + seconds)
    return free[0]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ordered values, interpolated between the two nearest."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
