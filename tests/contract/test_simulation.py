"""The simulator predicts what an orchestrator does, on every store."""

import asyncio
import heapq
import random
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_common.runtime.pausing import pause
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.trace import TraceGroup, TraceRun
from solstice_orchestrator.simulation.virtual_run import SimulationConfig
from solstice_orchestrator.stages.dispatch import Dispatch
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.admin.record import recorded_runs
from solstice_orchestrator.store.protocol import Claim
from solstice_orchestrator.superseding.policy import SupersedeRule
from solstice_orchestrator.worker.execution import execute
from solstice_orchestrator.worker.executors.scripted import ScriptedExecutor
from tests.stores import WORKER, ManualClock, worker_record
from tests.traces import EPOCH, RealStore, one_by_one, plan, random_trace, simulated_starts, trace_job

WAIT_SECONDS = 60
MAX_WAIT = 60.0
NEVER = 1e9
"""Longer than any trace: nothing is overdue, and no lease runs out."""

Open = Callable[[SimulationConfig], AbstractAsyncContextManager[JobStore]]


@pytest.fixture
def opened(store_url: str, clock: ManualClock) -> Open:
    """Open the test's store with an operator's rules."""
    return lambda configuration: open_store(
        store_url,
        clock=clock,
        lease_seconds=NEVER,
        max_wait_seconds=configuration.max_wait_seconds,
        caps=configuration.limits.caps,
        quotas=configuration.limits.quotas,
        rates=configuration.limits.rates,
        supersede=SupersedeRule.OFF,
    )


def configuration(
    slots: Mapping[str, int],
    limit: int = 0,
    caps: str = "",
    *,
    owners: str = "",
    hourly: str = "",
    labels: str = "",
    repositories: str = "",
    max_wait_seconds: float = NEVER,
) -> SimulationConfig:
    limits = StartLimits(
        caps=parse_caps(caps),
        quotas=Quotas(slots=parse_caps(owners), starts_per_hour=parse_caps(hourly)),
        rates=StartRates(labels=parse_rates(labels), repositories=parse_rates(repositories)),
    )
    return SimulationConfig(capacity=capacity(slots, limit), limits=limits, max_wait_seconds=max_wait_seconds)


@pytest.mark.parametrize(
    ("tried", "seed"),
    [
        pytest.param(configuration({"linux": 3}), 1, id="one label"),
        pytest.param(
            configuration({"linux": 2, "illumos": 2}, limit=3), 1, id="two labels, a limit over both"
        ),
        pytest.param(configuration({"linux": 4}, caps="*=3,acme/app=1"), 1, id="caps"),
        pytest.param(configuration({"linux": 4}, owners="acme=2", caps="*=3"), 2, id="caps of owners"),
        pytest.param(configuration({"linux": 3}, hourly="acme=20,reef=5"), 1, id="starts per hour"),
        # A token every 8, 16 or 4 seconds: its fractions are then exact in every clock.
        pytest.param(configuration({"linux": 4}, labels="linux=450/h:3"), 1, id="a rate of the label"),
        pytest.param(configuration({"linux": 4}, repositories="*=225/h:2"), 2, id="rates of repositories"),
        pytest.param(
            configuration({"linux": 4}, caps="*=2", owners="*=3", hourly="acme=40", labels="*=900/h:4"),
            1,
            id="all of it",
        ),
    ],
)
async def test_every_job_starts_when_it_does_in_the_store(
    opened: Open, clock: ManualClock, tried: SimulationConfig, seed: int
) -> None:
    trace = random_trace(random.Random(seed), 60, labels=tuple(tried.capacity.slots))
    async with opened(tried) as store:
        really = await RealStore(store, clock, tried).carry_out(trace)
    assert simulated_starts(trace, tried).at == really
    assert len(really) == sum(map(len, trace))


@pytest.mark.parametrize("caps", ["", "*=2"])
async def test_the_overdue_start_when_they_do_in_the_store(
    opened: Open, clock: ManualClock, caps: str
) -> None:
    """No two jobs begin to wait at once: of those PostgreSQL takes any."""
    tried = configuration({"linux": 2}, caps=caps, max_wait_seconds=MAX_WAIT)
    trace = random_trace(random.Random(4), 120, entangled=False)
    async with opened(tried) as store:
        really = await RealStore(store, clock, tried).carry_out(trace)
    tally = simulated_starts(trace, tried)
    assert tally.at == really
    assert sum(wait > MAX_WAIT for waits in tally.waits.values() for wait in waits) > 20


async def test_who_is_cancelled_for_a_newer_one_of_its_group_is_so_in_the_store(
    opened: Open, clock: ManualClock
) -> None:
    cancels = TraceGroup(group="deploy", mode=GroupMode.CANCEL)
    busy = [trace_job(0.0, 40.0, name=f"busy-{number}", repository="reef/tide") for number in range(2)]
    runs = [
        trace_job(1.0 + number, 50.0, name=f"deploy-{number}", concurrency=cancels) for number in range(4)
    ]
    later = [
        trace_job(50.0 + 10 * number, 50.0, name=f"later-{number}", concurrency=cancels)
        for number in range(3)
    ]
    trace, tried = one_by_one(*busy, *runs, *later), configuration({"linux": 2})
    async with opened(tried) as store:
        really = await RealStore(store, clock, tried).carry_out(trace)
    tally = simulated_starts(trace, tried)
    assert tally.at == really
    assert tally.superseded == 3
    assert "deploy-0" not in really


@dataclass
class ManualTime:
    """Jobs sleep by a clock that is moved by hand."""

    clock: ManualClock
    sleeping: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)
    slept: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever one more job sleeps; a waiting test may put another event here."""
    _slept: int = 0

    async def sleep(self, seconds: float) -> None:
        self._slept += 1
        over = asyncio.Event()
        heapq.heappush(self.sleeping, (self.clock.now + seconds, self._slept, over))
        self.slept.set()
        await over.wait()


@asynccontextmanager
async def orchestrating(store: JobStore, time: ManualTime, tried: SimulationConfig) -> AsyncIterator[None]:
    """A worker as the orchestrator has it, with the scripted executor."""
    executor = ScriptedExecutor(sleep=time.sleep)
    async with asyncio.TaskGroup() as jobs, asyncio.TaskGroup() as loops:
        dispatch = Dispatch(
            store=store,
            execute=partial(execute, store=store, executor=executor, clock=time.clock),
            registration=worker_record(WORKER, capacity=tried.capacity),
            jobs=jobs,
            metrics=Metrics(),
            rng=random.Random(1),
            lease_seconds=NEVER,
            renew_seconds=NEVER,
        )
        claiming = loops.create_task(dispatch.claim_jobs(), name="claim jobs")
        yield
        dispatch.stop_claiming()
        await claiming
        await dispatch.finish_jobs(asyncio.Event())


async def at_rest(store: JobStore, time: ManualTime, slots: int, unfinished: int) -> None:
    """Wait until all ends are stored, no free slot is claimable, and started jobs sleep."""
    late = monotonic() + WAIT_SECONDS
    async with store.changes() as changed:
        # A job sleeps some time after the store has changed.
        time.slept = changed
        while True:
            changed.clear()
            counts = await store.counts()
            running = counts.get((JobState.RUNNING, "linux"), 0)
            waiting = counts.get((JobState.WAITING, "linux"), 0)
            filled = running == min(slots, unfinished) and running + waiting == unfinished
            if filled and len(time.sleeping) == running:
                return
            assert monotonic() < late, (counts, len(time.sleeping), unfinished)
            await pause(0.05, unless=changed)


def claims_one_at_a_time(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Lock:
    """Return a lock that each claim holds.

    A claim happens at the moment at which it began. While one is under way, with a slot free, a test that moves the
    clock and plans a job would see that job start before it came.
    """
    claiming, claim = asyncio.Lock(), store.claim

    async def locked_claim(worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        async with claiming:
            return await claim(worker_id, free, limit)

    monkeypatch.setattr(store, "claim", locked_claim)
    return claiming


async def run_on_store(
    store: JobStore,
    clock: ManualClock,
    trace: Sequence[TraceRun],
    tried: SimulationConfig,
    *,
    claiming: asyncio.Lock,
) -> None:
    """The orchestrator runs the trace; nothing but time is virtual."""
    time, left, unfinished = ManualTime(clock), list(trace), 0
    slots = tried.capacity.slots["linux"]
    async with orchestrating(store, time, tried):
        while left or time.sleeping:
            came = left[0][0].at if left else float("inf")
            async with claiming:
                if not time.sleeping or EPOCH + came < time.sleeping[0][0]:
                    clock.now = EPOCH + came
                    unfinished += len(left[0])
                    await plan(store, left.pop(0), clock)
                else:
                    clock.now, _, over = heapq.heappop(time.sleeping)
                    over.set()
                    unfinished -= 1
            await at_rest(store, time, slots, unfinished)


async def test_waits_are_those_of_an_orchestrator_that_ran_the_trace(
    opened: Open, store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the trace on an orchestrator with scripted jobs, then simulate what the store recorded."""
    trace, tried = random_trace(random.Random(3), 150, entangled=False), configuration({"linux": 2})
    async with opened(tried) as store:
        claiming = claims_one_at_a_time(store, monkeypatch)
        await run_on_store(store, clock, trace, tried, claiming=claiming)
        views = await store.jobs(limit=1000)
    really: dict[Priority, list[float]] = {}
    for view in views:
        assert view.started_at is not None
        assert view.started_at >= view.created_at
        really.setdefault(view.priority, []).append(view.started_at - view.created_at)
    record = [run async for run in recorded_runs(store_url, since=0.0)]
    assert sum(map(len, record)) == len(views) == len(trace)
    for source in (trace, record):
        simulated = simulated_starts(source, tried).waits
        for priority, waits in really.items():
            assert statistics.fmean(simulated["linux", priority]) == pytest.approx(
                statistics.fmean(waits), rel=0.1
            )
            assert max(simulated["linux", priority]) == pytest.approx(max(waits), rel=0.1)
    assert statistics.fmean(map(statistics.fmean, really.values())) > 5
