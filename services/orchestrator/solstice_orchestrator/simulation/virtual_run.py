"""Simulate a trace in virtual time: arrivals and durations are given, starts are decided. Pure."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS, Candidate
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.blocking import JobBlocking, RunConsequences, SimulatedJob, is_plain
from solstice_orchestrator.simulation.tally import SimulationTally
from solstice_orchestrator.simulation.trace import TraceRun
from solstice_orchestrator.simulation.virtual_queue import VirtualQueues


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """The configuration of a simulation: all workers together, as one."""

    capacity: Capacity
    limits: StartLimits = field(default_factory=StartLimits)
    max_wait_seconds: float = MAX_WAIT_SECONDS


def simulate_trace(runs: Iterable[TraceRun], config: SimulationConfig, tally: SimulationTally) -> None:
    """Simulate the trace to its end.

    A job whose label has no slots never starts, and neither do its dependents.
    """
    simulation, coming = _SimulationState(config, tally), iter(runs)
    run = next(coming, None)
    while (now := min(simulation.next_at, run[0].at if run else math.inf)) < math.inf:
        simulation.end(now)
        while run and run[0].at <= now:
            simulation.begin(run, now)
            run = next(coming, None)
        simulation.start(now)


class _SimulationState:
    """The waiting and running jobs at a moment of virtual time."""

    def __init__(self, config: SimulationConfig, tally: SimulationTally) -> None:
        self._tally = tally
        self._queues = VirtualQueues[SimulatedJob](
            {label: slots for label, slots in config.capacity.slots.items() if slots},
            limit=config.capacity.limit,
            limits=config.limits,
            max_wait_seconds=config.max_wait_seconds,
        )
        self._blocking = JobBlocking()
        self._jobs = 0
        self._running: dict[int, tuple[Candidate, SimulatedJob, float]] = {}
        """Running jobs and their start times, by age."""
        self._ends: list[tuple[float, int]] = []
        """A heap of end times and ages; for a job that was stopped the first entry counts."""
        self._changed: set[str] = set()
        """Labels for which a job came."""

    @property
    def next_at(self) -> float:
        """The time of the next event, unless a run comes before."""
        return min(self._ends[0][0] if self._ends else math.inf, self._queues.next_at)

    def begin(self, run: TraceRun, now: float) -> None:
        """Add a run that comes now."""
        self._tally.count_arrival(run)
        simulated_jobs = [SimulatedJob(age, job) for age, job in enumerate(run, start=self._jobs)]
        self._jobs += len(run)
        if is_plain(run):
            self._arrive(simulated_jobs, now)
        else:
            self._tally.entangled = True
            self._follow(self._blocking.begin(simulated_jobs), now)

    def end(self, now: float) -> None:
        """End the jobs that end now."""
        while self._ends and self._ends[0][0] <= now:
            _, age = heapq.heappop(self._ends)
            if age not in self._running:
                continue
            candidate, simulated, since = self._running.pop(age)
            self._queues.end(candidate, now)
            self._tally.ended(simulated.job, since - candidate.waiting_since, now - since, now)
            if simulated.simulated_run is not None:
                self._follow(self._blocking.ended(simulated), now)

    def start(self, now: float) -> None:
        """Fill the free slots."""
        for candidate, simulated in self._queues.start(now):
            self._running[simulated.age] = candidate, simulated, now
            heapq.heappush(self._ends, (now + simulated.job.seconds, simulated.age))
            self._tally.started(simulated.job, candidate.waiting_since, now)
            if simulated.simulated_run is not None:
                self._blocking.started(simulated)
        for label in self._changed:
            self._tally.waiting(label, self._queues.waiting(label))
        self._changed.clear()

    def _arrive(self, simulated_jobs: Sequence[SimulatedJob], now: float) -> None:
        """Let these jobs of one repository begin to wait, together."""
        groups: dict[tuple[str, Priority], list[tuple[int, SimulatedJob]]] = {}
        for simulated in simulated_jobs:
            if self._queues.serve(simulated.job.label):
                groups.setdefault((simulated.job.label, simulated.job.priority), []).append(
                    (simulated.age, simulated)
                )
        for (label, priority), jobs in groups.items():
            self._queues.arrive(label, priority, simulated_jobs[0].job.repository, jobs, now)
            self._changed.add(label)

    def _follow(self, steps: Sequence[RunConsequences], now: float) -> None:
        for step in steps:
            for simulated in step.withdrawn:
                if self._queues.serve(simulated.job.label):
                    job = simulated.job
                    self._queues.withdraw(job.label, job.priority, job.repository, simulated.age)
            for simulated in step.stopped:
                heapq.heappush(self._ends, (now, simulated.age))
            if step.ready:
                self._arrive(step.ready, now)
            self._tally.superseded += step.dropped
