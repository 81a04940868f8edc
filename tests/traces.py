"""Random traces, and a real store that runs a trace step by step.

The store's clock follows the trace.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from solstice_common.messages import Priority
from solstice_common.values.times import format_timestamp
from solstice_orchestrator.domain.jobs import Concurrency, JobSpec, RunSpec
from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.tally import SimulationTally
from solstice_orchestrator.simulation.trace import TraceGroup, TraceJob, TraceRun
from solstice_orchestrator.simulation.virtual_run import SimulationConfig, simulate_trace
from solstice_orchestrator.store.protocol import AttemptKey, JobStore
from tests.builders import job, job_request
from tests.stores import CANCELLED, SUCCEEDED, WORKER, ManualClock, planning_task

EPOCH: float = ManualClock().now


def trace_job(
    at: float = 0.0, seconds: float = 1.0, repository: str = "acme/app", **changes: Any
) -> TraceJob:
    return TraceJob(**{"at": at, "seconds": seconds, "repository": repository, "label": "linux", **changes})


def named(name: str, at: float = 0.0, seconds: float = 10.0, **changes: Any) -> TraceJob:
    return trace_job(at, seconds, name=name, **changes)


def one_by_one(*jobs: TraceJob) -> Sequence[TraceRun]:
    """Each job as a run of its own."""
    return [[each] for each in jobs]


def random_trace(
    rng: random.Random, runs: int, *, labels: Sequence[str] = ("linux",), entangled: bool = True
) -> Sequence[TraceRun]:
    """A trace of repositories of which one sends most, in all classes.

    More jobs come than few slots can take at once. Unless `entangled`, with needs and groups, each run is one job, and
    no two come at the same moment.

    Times are multiples of an eighth of a second, so that they stay exact when counted from the epoch.
    """
    trace, at = list[TraceRun](), 0.0
    for number in range(runs):
        at += _rounded_up(rng.expovariate(1 / 4))
        repository = rng.choice(["acme/app"] * 4 + ["acme/docs", "reef/tide", "reef/lamp"])
        size, chained = rng.choice([1, 1, 2, 4]) if entangled else 1, rng.random() < 0.3
        # Never two groups at once: in which order a store looks at those is chance (the hash of a digest).
        run_group = TraceGroup(group="release") if entangled and rng.random() < 0.2 else None
        trace.append(
            [
                TraceJob(
                    at=at,
                    repository=repository,
                    label=rng.choice(labels),
                    seconds=1 + _rounded_up(rng.expovariate(1 / 8)),
                    priority=rng.choice([*Priority, Priority.DEFAULT, Priority.DEFAULT]),
                    run=f"run-{number}",
                    name=f"job-{number}-{position}",
                    needs=(f"job-{number}-{position - 1}",) if chained and position else (),
                    concurrency=TraceGroup(group="deploy")
                    if entangled and not run_group and rng.random() < 0.2
                    else None,
                    run_concurrency=run_group,
                )
                for position in range(size)
            ]
        )
    return trace


def configuration(
    slots: int = 1, *, limit: int = 0, caps: str = "", max_wait: float = 1e9, **more: int
) -> SimulationConfig:
    """Slots of the label linux, and by name of others."""
    return SimulationConfig(
        capacity=capacity({"linux": slots, **more}, limit),
        limits=StartLimits(caps=parse_caps(caps)),
        max_wait_seconds=max_wait,
    )


class StartTimes(SimulationTally):
    """A tally that records when each job started, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, float] = {}

    def started(self, job: TraceJob, since: float, now: float) -> None:
        super().started(job, since, now)
        self.at[job.name] = now


def simulated_starts(trace: Sequence[TraceRun], configuration: SimulationConfig) -> StartTimes:
    tally = StartTimes()
    simulate_trace(trace, configuration, tally)
    return tally


@dataclass
class RealStore:
    """Runs a trace with one worker on a store, and moves the store's clock."""

    store: JobStore
    clock: ManualClock
    configuration: SimulationConfig
    at: dict[str, float] = field(default_factory=dict)
    """When each job started, by its name, in the order of the starts."""
    _ends: list[tuple[float, int, AttemptKey]] = field(default_factory=list)
    _running: dict[AttemptKey, tuple[str, int]] = field(default_factory=dict)
    _stopping: set[AttemptKey] = field(default_factory=set)

    async def carry_out(self, trace: Sequence[TraceRun]) -> Mapping[str, float]:
        jobs = {job.name: (number, job) for number, job in enumerate(job for run in trace for job in run)}
        left = list(trace)
        next_start = math.inf
        while left or self._ends or next_start < math.inf:
            now = min(
                left[0][0].at if left else math.inf,
                self._ends[0][0] if self._ends else math.inf,
                next_start,
            )
            self.clock.now = EPOCH + now
            while self._ends and self._ends[0][0] <= now:
                _, _, key = heapq.heappop(self._ends)
                if self._running.pop(key, None) is not None:
                    assert await self.store.finish(key, CANCELLED if key in self._stopping else SUCCEEDED)
            while left and left[0][0].at <= now:
                await plan(self.store, left.pop(0), self.clock)
            for claim in await self.store.claim(WORKER, self._free(), self._limit()):
                number, job = jobs[claim.spec.name]
                self.at[job.name] = now
                self._running[claim.key] = job.label, number
                heapq.heappush(self._ends, (now + job.seconds, number, claim.key))
            renewal = await self.store.renew(WORKER, list(self._running))
            for key in renewal.cancelled - self._stopping:
                self._stopping.add(key)
                heapq.heappush(self._ends, (now, self._running[key][1], key))
            # As the dispatcher does.
            pause = await self.store.rate_pause()
            next_start = math.inf if pause is None else now + pause
        return self.at

    def _free(self) -> Mapping[str, int]:
        used = Counter(label for label, _ in self._running.values())
        return {label: slots - used[label] for label, slots in self.configuration.capacity.slots.items()}

    def _limit(self) -> int:
        return self.configuration.capacity.limit - len(self._running)


async def plan(store: JobStore, run: TraceRun, clock: ManualClock) -> str:
    """Admit and plan the run now; return its id."""
    begun = run[0]
    request = job_request(
        repo_full_name=begun.repository,
        repo_url=f"https://forge.example/{begun.repository}.git",
        submitted_at=format_timestamp(datetime.fromtimestamp(clock.now, UTC)),
        event="dispatch",
    )
    (admission,) = await store.admit([request])
    run_spec = RunSpec(concurrency=_concurrency(begun.run_concurrency))
    assert await store.planned(await planning_task(store), [spec_of(each) for each in run], run_spec)
    return admission.run_id


def spec_of(each: TraceJob) -> JobSpec:
    """The spec of a job that a scripted executor plays."""
    return job(
        f"sleep {each.seconds:.3f}",
        name=each.name,
        runs_on=each.label,
        priority=each.priority,
        needs=each.needs,
        timeout_seconds=1e6,
        concurrency=_concurrency(each.concurrency),
    )


def _concurrency(group: TraceGroup | None) -> Concurrency | None:
    return None if group is None else Concurrency(group=group.group, mode=group.mode)


def _rounded_up(seconds: float) -> float:
    return math.ceil(seconds * 8) / 8
