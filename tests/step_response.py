"""Simulates how intake answers to a step in the speed of the workers.

The decisions are those of the services. `./just docs` writes the table into the page about capacity.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from solstice_orchestrator.queue_times.demand import DemandFacts, RunningJob, WaitingJobs, jobs_per_second
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.scheduling.backpressure import intake_limit, pauses_intake
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView
from solstice_orchestrator.stages.backlog import SPEED_COUNTS
from solstice_orchestrator.store.decisions.wait_facts import RECENT
from tests.markdown import table

SLOTS: Final = 40
INTAKE_SECONDS: Final = 60.0
MOST: Final = 2000
SLOW: Final = range(300, 900)
"""The seconds in which a job takes four times as long."""
ARRIVALS: Final = 10
"""Requests a second, beside those that wait at the beginning."""
WORKER: Final = WorkerView(
    worker_id="w",
    name="quay",
    host="quay.example",
    version="1",
    slots={"linux": SLOTS},
    limit=SLOTS,
    presence=Presence.ALIVE,
    state=WorkerState.ACTIVE,
    quarantined_until=None,
    failures_in_a_row=0,
    started_at=0.0,
    seen_at=0.0,
    jobs=(),
)
SHOWN: Final = (0, 10, 60, 290, 310, 360, 480, 890, 910, 960, 1200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One second of the simulation."""

    at: int
    speed: float | None
    """As the decision measured it last."""
    limit: int
    backlog: int
    left: int
    """Requests in the queue."""
    done: int
    """Jobs that ended in this second."""


@dataclass(kw_only=True)
class Line:
    """A queue, a store and workers, second by second."""

    left: int = 5000
    backlog: int = 0
    running: list[tuple[int, int]] = field(default_factory=list)
    """When each job began and ends."""
    recent: deque[Sample] = field(default_factory=lambda: deque(maxlen=RECENT))
    speed: float | None = None
    paused: bool = False

    def second(self, at: int) -> Moment:
        """Let one second pass: jobs end and begin, then intake decides."""
        ended = [each for each in self.running if each[1] <= at]
        self.recent.extend(Sample(repository="a/a", seconds=end - begun) for begun, end in ended)
        self.running = [each for each in self.running if each[1] > at]
        starts = min(SLOTS - len(self.running), self.backlog)
        self.running += [(at, at + (8 if at in SLOW else 2))] * starts
        self.backlog -= starts
        self.left += ARRIVALS
        if at % SPEED_COUNTS == 0:
            waiting = [WaitingJobs(label="linux", repository="a/a", jobs=self.backlog, oldest=0.0)]
            self.speed = jobs_per_second(
                DemandFacts(
                    now=float(at),
                    waiting=waiting if self.backlog else (),
                    running=[
                        RunningJob(label="linux", repository="a/a", started_at=begun)
                        for begun, _ in self.running
                    ],
                    workers=(WORKER,),
                    recent={"linux": tuple(self.recent)},
                )
            )
        limit = intake_limit(MOST, jobs_per_second=self.speed, seconds=INTAKE_SECONDS)
        self.paused = pauses_intake(self.backlog, limit, paused=self.paused)
        if not self.paused:
            # A batch of a consumer is taken whole, or up to the limit.
            accepted = min(self.left, limit - self.backlog)
            self.backlog, self.left = self.backlog + accepted, self.left - accepted
        return Moment(
            at=at, speed=self.speed, limit=limit, backlog=self.backlog, left=self.left, done=len(ended)
        )


def step_response() -> list[Moment]:
    """Return every second of a step down and up again."""
    line = Line()
    return [line.second(at) for at in range(SHOWN[-1] + 1)]


def step_response_table() -> str:
    """Return the table of the page."""
    moments = step_response()
    rows = [
        (
            str(each.at),
            "8 s" if each.at in SLOW else "2 s",
            "unknown" if each.speed is None else f"{each.speed:.1f}",
            str(each.limit),
            str(each.backlog),
            str(each.left),
        )
        for each in (moments[at] for at in SHOWN)
    ]
    return table(("second", "a job takes", "jobs a second", "limit", "backlog", "left in the queue"), rows)
