"""Counts of a simulation: every wait, and the use of slots. Pure.

The memory is constant except for one number per job.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from solstice_common.messages import Priority
from solstice_orchestrator.simulation.trace import TraceJob, TraceRun

SHORT_SECONDS: Final = 10.0
"""Shorter jobs count as this long: five seconds of waiting matter little to a one-second job."""


class Speed:
    """The mean speed of jobs: 1 without waiting, 1/2 when the wait equals the run.

    The inverse of the bounded slowdown (Feitelson and Rudolph 1998).
    """

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count


class SimulationTally:
    """The counts of one simulation."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        """Jobs by label."""
        self.entangled = False
        """Whether any run had jobs with needs or groups."""
        self.superseded = 0
        """Jobs that were cancelled or skipped before they started, for a newer one of their group."""
        self.began_at: float | None = None
        self.ended_at = 0.0
        self.waits: defaultdict[tuple[str, Priority], array[float]] = defaultdict(lambda: array("d"))
        """Seconds of each wait for a slot, by label and class, in order of the starts."""
        self.busy_seconds: defaultdict[str, float] = defaultdict(float)
        """Busy seconds of slots, by label."""
        self.longest_line: defaultdict[str, int] = defaultdict(int)
        """The most jobs that waited at once, by label."""
        self.speeds: defaultdict[str, defaultdict[str, Speed]] = defaultdict(lambda: defaultdict(Speed))
        """Speeds by label, then repository."""

    def count_arrival(self, run: TraceRun) -> None:
        for job in run:
            self.jobs[job.label] += 1
        if self.began_at is None:
            self.began_at = run[0].at

    def waiting(self, label: str, count: int) -> None:
        """Record the number of jobs that wait for the label after all possible starts."""
        self.longest_line[label] = max(self.longest_line[label], count)

    def started(self, job: TraceJob, since: float, now: float) -> None:
        self.waits[job.label, job.priority].append(now - since)

    def ended(self, job: TraceJob, waited: float, ran: float, now: float) -> None:
        self.busy_seconds[job.label] += ran
        self.ended_at = now
        speed = self.speeds[job.label][job.repository]
        speed.count += 1
        speed.total += min(1.0, max(ran, SHORT_SECONDS) / (waited + ran)) if waited else 1.0

    def of_repositories(self) -> Mapping[str, Speed]:
        """Return the speed of each repository over all labels."""
        together: defaultdict[str, Speed] = defaultdict(Speed)
        for of_label in self.speeds.values():
            for repository, speed in of_label.items():
                together[repository].count += speed.count
                together[repository].total += speed.total
        return together
