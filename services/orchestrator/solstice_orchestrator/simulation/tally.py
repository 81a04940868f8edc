"""What is noted while a trace is played: every wait, and what was used. Flat but for a number per job. Pure."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from solstice_common.messages import Priority
from solstice_orchestrator.simulation.trace import TraceJob, TraceRun

SHORT_SECONDS: Final = 10.0
"""Jobs shorter than this count as if they were so long: nobody minds that a second's work waited for five."""


class Speed:
    """How fast jobs were done, on average: 1 for one that started at once, 1/2 for one that waited as long as it ran.

    The inverse of the bounded slowdown (Feitelson and Rudolph 1998).
    """

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count


class Tally:
    """Of one play."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        """By label."""
        self.entangled = False
        """Whether a run came of which jobs have needs or groups."""
        self.superseded = 0
        """Jobs that were cancelled or skipped before they started, for a newer one of their group."""
        self.began_at: float | None = None
        self.ended_at = 0.0
        self.waits: defaultdict[tuple[str, Priority], array[float]] = defaultdict(lambda: array("d"))
        """Seconds for a slot, by label and class, one per job that started, in the order of their starts."""
        self.busy_seconds: defaultdict[str, float] = defaultdict(float)
        """Of slots, by label."""
        self.longest_line: defaultdict[str, int] = defaultdict(int)
        """By label: how many jobs waited at once."""
        self.speeds: defaultdict[str, defaultdict[str, Speed]] = defaultdict(lambda: defaultdict(Speed))
        """By label, then repository."""

    def came(self, run: TraceRun) -> None:
        for job in run:
            self.jobs[job.label] += 1
        if self.began_at is None:
            self.began_at = run[0].at

    def waiting(self, label: str, count: int) -> None:
        """So many wait for the label, with every slot that they may use in use."""
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
        """Over all labels."""
        together: defaultdict[str, Speed] = defaultdict(Speed)
        for of_label in self.speeds.values():
            for repository, speed in of_label.items():
                together[repository].count += speed.count
                together[repository].total += speed.total
        return together
