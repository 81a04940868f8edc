"""When a job that waits may start, judged by how long those like it ran: a range, or nothing. Pure."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

FEW: Final = 3
"""With fewer jobs of a repository to go by, those of the whole label are asked."""
LOW, HIGH = 0.1, 0.9
"""What the range leaves out at its two ends."""
CLOCK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A job that ended a while ago."""

    repository: str
    seconds: float
    """How long it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A slot's job."""

    repository: str
    for_seconds: float
    """How long it runs already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How many jobs start before one of `repository`."""

    repository: str
    own: int = 0
    """Of the same repository."""
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds since the epoch."""

    earliest: float
    latest: float


class Met(StrEnum):
    """How a job's start stood to its forecast."""

    WITHIN = "within"
    EARLY = "early"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a forecast."""

    met: Met
    error_seconds: float
    """How far outside the range the start was; 0 within."""


def judge(forecast: Forecast, started_at: float) -> Judgement:
    """Compare a forecast with when the job started; a second more or less is the clocks'."""
    if started_at > forecast.latest + CLOCK_SECONDS:
        return Judgement(met=Met.LATE, error_seconds=started_at - forecast.latest)
    if started_at < forecast.earliest - CLOCK_SECONDS:
        return Judgement(met=Met.EARLY, error_seconds=forecast.earliest - started_at)
    return Judgement(met=Met.WITHIN, error_seconds=0.0)


def forecast(
    now: float, slots: int, busy: Sequence[Busy], line: Line, recent: Sequence[Sample]
) -> Forecast | None:
    """When a job at the end of `line` gets one of `slots`, of which some are `busy`; None when nobody can tell.

    Those ahead last as long as recent jobs did, in the range of their 10th to 90th percentile; where several follow
    each other in one slot that range narrows, as that of an average does. It holds if nobody comes who goes before.
    """
    if slots <= 0:
        return None
    if line.own + line.others + len(busy) < slots:
        return Forecast(earliest=now, latest=now)
    if not recent:
        return None
    low, high = _each_ahead(line, slots, recent)
    left = [_left(each, recent) for each in busy]
    ahead = line.own + line.others
    return Forecast(
        earliest=now + _play(slots, [shortest for shortest, _ in left], ahead, low),
        latest=now + _play(slots, [longest for _, longest in left], ahead, high),
    )


def durations(recent: Iterable[Sample], repository: str) -> Sequence[float]:
    """How long a repository's jobs last: by its own, if there are enough, else by all of the label; shortest first."""
    recent = list(recent)
    own = sorted(sample.seconds for sample in recent if sample.repository == repository)
    return own if len(own) >= FEW else sorted(sample.seconds for sample in recent)


def remaining(each: Busy, recent: Sequence[Sample]) -> float:
    """How much longer a running job takes on average: as those did that ran at least as long; 0 for one beyond all."""
    longer = _longer(each, recent)
    return fmean(longer) - each.for_seconds if longer else 0.0


def _left(each: Busy, recent: Sequence[Sample]) -> tuple[float, float]:
    """How much longer a running job may take: as those did that ran at least as long."""
    longer = _longer(each, recent)
    if longer:
        return (_quantile(longer, LOW) - each.for_seconds, _quantile(longer, HIGH) - each.for_seconds)
    # Longer than any that we know: it may end this moment, or take as long again.
    return (0.0, each.for_seconds)


def _longer(each: Busy, recent: Sequence[Sample]) -> Sequence[float]:
    """Of the jobs to go by those that ran longer than this one has already, shortest first."""
    for known in (durations(recent, each.repository), sorted(sample.seconds for sample in recent)):
        longer = [seconds for seconds in known if seconds > each.for_seconds]
        if longer:
            return longer
    return ()


def _each_ahead(line: Line, slots: int, recent: Sequence[Sample]) -> tuple[float, float]:
    """The shortest and longest that those ahead take on average."""
    ahead = line.own + line.others
    follow = 1 + ahead / slots
    own = _typical(durations(recent, line.repository), follow)
    others = _typical(sorted(sample.seconds for sample in recent), follow)
    share = line.own / ahead if ahead else 0.0
    low, high = (share * mine + (1 - share) * theirs for mine, theirs in zip(own, others, strict=True))
    return low, high


def _typical(ordered: Sequence[float], follow: float) -> tuple[float, float]:
    """The shortest and longest that each of `follow` jobs in a row takes on average."""
    mean, root = fmean(ordered), follow**0.5
    low = mean - (mean - _quantile(ordered, LOW)) / root
    high = mean + (_quantile(ordered, HIGH) - mean) / root
    return (min(low, high), max(low, high))


def _play(slots: int, left: Iterable[float], ahead: int, each_seconds: float) -> float:
    """Seconds until the one behind `ahead` others gets a slot, when each of those takes `each_seconds`."""
    free = sorted([*left, *[0.0] * slots])[-slots:] if slots else []
    heapq.heapify(free)
    for _ in range(ahead):
        heapq.heapreplace(free, free[0] + each_seconds)
    return free[0]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest, as statistics has it for the whole of what there is."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
