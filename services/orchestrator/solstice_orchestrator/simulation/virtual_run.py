"""A trace is played in virtual time: jobs come when it says and run for as long as it says; who starts is decided. Pure."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS, Candidate
from solstice_orchestrator.scheduling.starts import Limits
from solstice_orchestrator.simulation.blocking import Blocking, Step, Ticket, is_plain
from solstice_orchestrator.simulation.tally import Tally
from solstice_orchestrator.simulation.trace import TraceRun
from solstice_orchestrator.simulation.virtual_queue import Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What jobs are run with: all workers together, as one."""

    capacity: Capacity
    limits: Limits = field(default_factory=Limits)
    max_wait_seconds: float = MAX_WAIT_SECONDS


def play(runs: Iterable[TraceRun], house: House, tally: Tally) -> None:
    """Play the trace to its end. A job whose label has no slots never starts, nor does what needs it."""
    playing, coming = _Play(house, tally), iter(runs)
    run = next(coming, None)
    while (now := min(playing.next_at, run[0].at if run else math.inf)) < math.inf:
        playing.end(now)
        while run and run[0].at <= now:
            playing.begin(run, now)
            run = next(coming, None)
        playing.start(now)


class _Play:
    """What waits and runs at a moment of virtual time."""

    def __init__(self, house: House, tally: Tally) -> None:
        self._tally = tally
        self._lines = Lines[Ticket](
            {label: slots for label, slots in house.capacity.slots.items() if slots},
            limit=house.capacity.limit,
            limits=house.limits,
            max_wait_seconds=house.max_wait_seconds,
        )
        self._blocking = Blocking()
        self._jobs = 0
        self._running: dict[int, tuple[Candidate, Ticket, float]] = {}
        """By age: who, and since when."""
        self._ends: list[tuple[float, int]] = []
        """A heap of when, and the age of whom; of one that was stopped the first counts."""
        self._changed: set[str] = set()
        """Labels for which somebody came."""

    @property
    def next_at(self) -> float:
        """When something happens, unless a run comes before."""
        return min(self._ends[0][0] if self._ends else math.inf, self._lines.next_at)

    def begin(self, run: TraceRun, now: float) -> None:
        """A run comes."""
        self._tally.came(run)
        tickets = [Ticket(age, job) for age, job in enumerate(run, start=self._jobs)]
        self._jobs += len(run)
        if is_plain(run):
            self._arrive(tickets, now)
        else:
            self._tally.entangled = True
            self._follow(self._blocking.begin(tickets), now)

    def end(self, now: float) -> None:
        """Whatever ends now."""
        while self._ends and self._ends[0][0] <= now:
            _, age = heapq.heappop(self._ends)
            if age not in self._running:
                continue
            candidate, ticket, since = self._running.pop(age)
            self._lines.end(candidate, now)
            self._tally.ended(ticket.job, since - candidate.waiting_since, now - since, now)
            if ticket.plan is not None:
                self._follow(self._blocking.ended(ticket), now)

    def start(self, now: float) -> None:
        """Free slots are filled."""
        for candidate, ticket in self._lines.start(now):
            self._running[ticket.age] = candidate, ticket, now
            heapq.heappush(self._ends, (now + ticket.job.seconds, ticket.age))
            self._tally.started(ticket.job, candidate.waiting_since, now)
            if ticket.plan is not None:
                self._blocking.started(ticket)
        for label in self._changed:
            self._tally.waiting(label, self._lines.waiting(label))
        self._changed.clear()

    def _arrive(self, tickets: Sequence[Ticket], now: float) -> None:
        """These jobs of one repository begin to wait, together."""
        groups: dict[tuple[str, Priority], list[tuple[int, Ticket]]] = {}
        for ticket in tickets:
            if self._lines.serve(ticket.job.label):
                groups.setdefault((ticket.job.label, ticket.job.priority), []).append((ticket.age, ticket))
        for (label, priority), jobs in groups.items():
            self._lines.arrive(label, priority, tickets[0].job.repository, jobs, now)
            self._changed.add(label)

    def _follow(self, steps: Sequence[Step], now: float) -> None:
        for step in steps:
            for ticket in step.withdrawn:
                if self._lines.serve(ticket.job.label):
                    job = ticket.job
                    self._lines.withdraw(job.label, job.priority, job.repository, ticket.age)
            for ticket in step.stopped:
                heapq.heappush(self._ends, (now, ticket.age))
            if step.ready:
                self._arrive(step.ready, now)
            self._tally.superseded += step.dropped
