"""The report of a simulation: waits, fairness, and the use of slots. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.simulation.tally import SimulationTally, Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatistics:
    """Seconds that started jobs waited for a slot."""

    jobs: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWaits:
    """The waits of one label and class; without a class, of the whole label."""

    label: str
    priority: Priority | None
    waits: WaitStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How equally repositories are served.

    By the mean speed (`tally.Speed`) of the jobs of each.
    """

    repositories: int
    jain: float
    """1 when all are equal, 1/n when one gets everything (Jain, Chiu and Hawe 1984)."""
    mean_speed: float
    slowest: str
    slowest_speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelUse:
    """How a label's slots were used."""

    label: str
    slots: int
    jobs: int
    """Jobs that came."""
    utilisation: float
    """The busy share of its slots' time, from the first arrival to the last end."""
    longest_line: int
    """The most jobs that waited for it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """How long the jobs of a trace waited in virtual time, and why."""

    jobs: int
    superseded: int
    """Jobs cancelled or skipped before they started, for a newer one of their concurrency group."""
    never_started: int
    """Jobs that can never start: they or their needs have no slots, or a cap is 0."""
    span_seconds: float
    """From the first arrival to the last end."""
    waits: Sequence[ClassWaits]
    """By label, then class, the most urgent first; each label ends with its total."""
    labels: Sequence[LabelUse]
    fairness: Fairness | None
    """None when no job ran."""


def report(tally: SimulationTally, total: Capacity) -> SimulationReport:
    """Summarise a finished simulation."""
    span = tally.ended_at - tally.began_at if tally.began_at is not None and tally.speeds else 0.0
    labels = sorted({*total.slots, *tally.jobs})
    jobs, started = tally.jobs.total(), sum(map(len, tally.waits.values()))
    return SimulationReport(
        jobs=jobs,
        superseded=tally.superseded,
        never_started=jobs - started - tally.superseded,
        span_seconds=span,
        waits=[each for label in labels for each in _waits_of(tally, label)],
        labels=[
            LabelUse(
                label=label,
                slots=(slots := total.slots.get(label, 0)),
                jobs=tally.jobs[label],
                utilisation=tally.busy_seconds[label] / (slots * span) if slots and span else 0.0,
                longest_line=tally.longest_line[label],
            )
            for label in labels
        ],
        fairness=_fairness(tally.of_repositories()),
    )


def waits_of_label(tally: SimulationTally, label: str) -> WaitStatistics | None:
    """Return the waits of a label over all classes; None when no job started."""
    return _waits(seconds for (of, _), waits in tally.waits.items() if of == label for seconds in waits)


def jain(shares: Collection[float]) -> float:
    """Jain's index: the square of the sum by n times the sum of squares."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share does not exceed (nearest rank)."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _waits_of(tally: SimulationTally, label: str) -> Iterable[ClassWaits]:
    classes = sorted((priority for of, priority in tally.waits if of == label), key=rank)
    for priority in classes:
        if (waits := _waits(tally.waits[label, priority])) is not None:
            yield ClassWaits(label=label, priority=priority, waits=waits)
    if (waits := waits_of_label(tally, label)) is not None:
        yield ClassWaits(label=label, priority=None, waits=waits)


def _waits(seconds: Iterable[float]) -> WaitStatistics | None:
    ordered = sorted(seconds)
    if not ordered:
        return None
    return WaitStatistics(
        jobs=len(ordered),
        mean=fmean(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def _fairness(speeds: Mapping[str, Speed]) -> Fairness | None:
    if not speeds:
        return None
    means = {repository: speed.mean for repository, speed in speeds.items()}
    slowest = min(means, key=means.__getitem__)
    return Fairness(
        repositories=len(means),
        jain=jain(means.values()),
        mean_speed=fmean(means.values()),
        slowest=slowest,
        slowest_speed=means[slowest],
    )
