"""Dispatch against a real store, with executions that the test ends by hand."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.adaptive_concurrency import GROW_SECONDS
from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.scheduling.governor import MachineLimits, Resource, SensorReading
from solstice_orchestrator.scheduling.quarantine import FAILURES_IN_A_ROW, FIRST_SECONDS, OTHERS_FIRST_SECONDS
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.scheduling.workers import (
    FORGET_SECONDS,
    DrainOrder,
    PauseOrder,
    QuarantineOrder,
    ResumeOrder,
    WorkerPressure,
    WorkerState,
)
from solstice_orchestrator.stages.dispatch import CONDITION_SECONDS, Dispatch
from solstice_orchestrator.store.protocol import AttemptKey, Claim, LastChunks, Renewal
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from solstice_orchestrator.worker.pressure import Governor, StartingJobs
from tests.builders import job
from tests.polling import wait_until
from tests.stores import (
    CANCELLED,
    PROVISION_ERRORED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    planned,
    state_of,
    store_file,
    wait_for_stored,
    worker_record,
)

WAIT_SECONDS = 30


class ManualExecutions:
    """Executions that last until the test says so."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.running: dict[str, Claim] = {}
        self.cancelled: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.breaks = False
        self.outcome = SUCCEEDED

    async def __call__(self, claim: Claim, *, stop: asyncio.Event) -> None:
        if self.breaks:
            raise RuntimeError("a mistake")
        name = claim.spec.name
        end = self._ends.setdefault(name, asyncio.Event())
        await self._note(name, claim)
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(end.wait())
        try:
            await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
            await self._store.finish(claim.key, CANCELLED if stop.is_set() else self.outcome)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            await self._store.finish(claim.key, RELEASED)
            raise
        finally:
            stopping.cancel()
            ending.cancel()
            await asyncio.wait([stopping, ending])
            await self._note(name, None)

    async def _note(self, name: str, claim: Claim | None) -> None:
        async with self._changed:
            if claim is None:
                del self.running[name]
            else:
                self.running[name] = claim
            self._changed.notify_all()

    def end(self, name: str) -> None:
        self._ends[name].set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)


class FailingStore(SqliteStore):
    """A store that fails or hangs renewals, delays claims, or breaks on ends, as set."""

    away = False
    hangs = False
    broken = 0
    claimed: asyncio.Event | None = None
    let_go: asyncio.Event | None = None
    unfinished: asyncio.Event | None = None

    async def renew(self, worker_id: str, attempt_keys: Sequence[AttemptKey]) -> Renewal:
        if self.away:
            raise StoreUnavailable("the test's store", "it is in a mood")
        if self.hangs:
            await asyncio.Event().wait()
        return await super().renew(worker_id, attempt_keys)

    async def finish(self, key: AttemptKey, outcome: Outcome, logs: Sequence[LastChunks] = ()) -> bool:
        if self.unfinished is not None:
            self.unfinished.set()
            raise RuntimeError("a mistake")
        return await super().finish(key, outcome, logs)

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        if self.broken > 0:
            self.broken -= 1
            raise RuntimeError("a mistake")
        claims = await super().claim(worker_id, free, limit)
        if claims and self.claimed is not None and self.let_go is not None:
            self.claimed.set()
            await self.let_go.wait()
        return claims


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[FailingStore]:
    rng = random.Random(1)
    rules = StoreRules(new_id=id_source(rng), rng=rng)
    async with FailingStore.open(store_file(tmp_path), rules=rules, clock=clock) as opened:
        assert isinstance(opened, FailingStore)
        yield opened


@pytest.fixture
def executions(store: FailingStore) -> ManualExecutions:
    return ManualExecutions(store)


@asynccontextmanager
async def dispatching(
    store: FailingStore,
    executions: ManualExecutions,
    *,
    slots: Mapping[str, int] | None = None,
    limit: int = 0,
    lease_seconds: float = 60.0,
    renew_seconds: float = 0.05,
    metrics: Metrics | None = None,
    governor: Governor | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Dispatch]:
    async with asyncio.TaskGroup() as jobs, asyncio.TaskGroup() as loops:
        dispatch = Dispatch(
            store=store,
            execute=executions,
            registration=worker_record(WORKER, capacity=capacity(slots or {"linux": 2}, limit)),
            jobs=jobs,
            metrics=metrics or Metrics(),
            rng=random.Random(1),
            lease_seconds=lease_seconds,
            renew_seconds=renew_seconds,
            governor=governor,
            monotonic=monotonic,
        )
        claiming = loops.create_task(dispatch.claim_jobs())
        renewing = loops.create_task(dispatch.keep_leases())
        try:
            yield dispatch
        finally:
            dispatch.stop_claiming()
            await claiming
            await dispatch.drain(0, asyncio.Event())
            renewing.cancel()


async def test_no_more_run_than_there_are_slots_and_a_freed_one_is_filled(
    store: FailingStore, executions: ManualExecutions
) -> None:
    async with dispatching(store, executions, slots={"linux": 2, "illumos": 1}):
        for name in ("a", "b", "c"):
            await planned(store, job("true", name=name))
        await planned(store, job("true", name="i", runs_on="illumos"))
        await executions.until(lambda: len(executions.running) == 3)
        assert sorted(executions.running) == ["a", "b", "i"]
        executions.end("a")
        await executions.until(lambda: "c" in executions.running)
        assert "a" not in executions.running


async def test_the_limit_over_all_labels_holds(store: FailingStore, executions: ManualExecutions) -> None:
    for name, label in (("a", "linux"), ("b", "illumos"), ("c", "linux")):
        await planned(store, job("true", name=name, runs_on=label))
    async with dispatching(store, executions, slots={"linux": 9, "illumos": 9}, limit=2):
        await executions.until(lambda: len(executions.running) == 2)
        executions.end("a")
        await executions.until(lambda: "c" in executions.running)
        assert sorted(executions.running) == ["b", "c"]


async def test_a_worker_under_pressure_reports_that_it_takes_less_and_recovers(
    store: FailingStore, executions: ManualExecutions
) -> None:
    reading, now = SensorReading(), ManualClock()
    governor = Governor(
        limit=4,
        limits=MachineLimits(disk=5.0),
        adaptive=True,
        read=lambda: reading,
        starting=StartingJobs(),
        metrics=Metrics(),
        clock=now,
    )
    governor.ended(PROVISION_ERRORED)
    await store.register(worker_record(WORKER, capacity=capacity({"linux": 4}, 0)))
    for name in "abcd":
        await planned(store, job("true", name=name), planner="planner")
    async with dispatching(store, executions, slots={"linux": 4}, governor=governor) as dispatch:
        await executions.until(lambda: len(executions.running) == 2)
        view = await store.worker(WORKER)
        assert view is not None
        assert (view.shrunk_to, view.refuses) == (2, None)
        reading = SensorReading(disk_free=1.0)
        now.forward(GROW_SECONDS)
        executions.end("a")
        await executions.until(lambda: len(executions.running) == 1)
        await wait_for_stored(
            store,
            lambda: store.worker(WORKER),
            lambda view: view is not None and view.refuses is Resource.DISK,
        )
        assert sorted(executions.running) == ["b"]
        reading = SensorReading(disk_free=50.0)
        now.forward(2 * GROW_SECONDS)
        dispatch.wake()
        await executions.until(lambda: len(executions.running) == 3)


async def test_the_governor_learns_whether_more_jobs_wait(
    store: FailingStore, executions: ManualExecutions
) -> None:
    governor = Governor(
        limit=4,
        limits=MachineLimits(),
        adaptive=True,
        read=SensorReading,
        starting=StartingJobs(),
        metrics=Metrics(),
        start_seconds=2.0,
    )
    await store.register(worker_record(WORKER, capacity=capacity({"linux": 4}, 0)))
    for name in "ab":
        await planned(store, job("true", name=name), planner="planner")
    async with dispatching(store, executions, slots={"linux": 4}, governor=governor) as dispatch:
        await executions.until(lambda: sorted(executions.running) == ["a"])
        assert governor.jobs_wait, "one more may be there: no more than one was asked for"
        dispatch.wake()
        await executions.until(lambda: sorted(executions.running) == ["a", "b"])
        dispatch.wake()
        await wait_until(lambda: not governor.jobs_wait)


async def test_a_machine_that_others_keep_busy_starts_a_job_at_last_and_shows_its_present_load(
    store: FailingStore, executions: ManualExecutions, clock: ManualClock
) -> None:
    load, now = 6.2, ManualClock()
    governor = Governor(
        limit=4,
        limits=MachineLimits(load=2.5),
        adaptive=False,
        read=lambda: SensorReading(load=load),
        starting=StartingJobs(),
        metrics=Metrics(),
        patience_seconds=300.0,
        clock=now,
    )
    await store.register(worker_record(WORKER, capacity=capacity({"linux": 4}, 0)))
    for name in "ab":
        await planned(store, job("true", name=name), planner="planner")

    async def shown(figure: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                view = await store.worker(WORKER)
                if view is not None and figure in view.refusal and view.condition_at == clock.now:
                    return
                dispatch.wake()
                await asyncio.sleep(0.01)

    async with dispatching(
        store, executions, slots={"linux": 4}, governor=governor, monotonic=now
    ) as dispatch:
        await shown("the load is 6.2")
        load = 50.0
        for _ in range(29):
            now.forward(10.0)
            clock.forward(10.0)
            await shown("the load is 50.0")
        assert not executions.running
        now.forward(10.0)
        dispatch.wake()
        await executions.until(lambda: len(executions.running) == 1)
        now.forward(299.0)
        dispatch.wake()
        await asyncio.sleep(0.05)
        assert len(executions.running) == 1
        now.forward(1.0)
        dispatch.wake()
        await executions.until(lambda: len(executions.running) == 2)


async def test_a_report_that_the_store_takes_slowly_is_as_old_as_its_reading(
    tmp_path: Path, clock: ManualClock
) -> None:
    now, loads = ManualClock(), iter(range(10, 20))

    class Slow(FailingStore):
        refusals: tuple[str, ...] = ()

        async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
            self.refusals += (pressure.refusal,)
            if len(self.refusals) == 1:
                now.forward(CONDITION_SECONDS)
            await super().report(worker_id, pressure)

    governor = Governor(
        limit=4,
        limits=MachineLimits(load=2.5),
        adaptive=False,
        read=lambda: SensorReading(load=next(loads)),
        starting=StartingJobs(),
        metrics=Metrics(),
        clock=now,
    )
    rules = StoreRules(new_id=id_source(random.Random(1)), rng=random.Random(1))
    async with Slow.open(tmp_path / "store.db", rules=rules, clock=clock) as store:
        assert isinstance(store, Slow)
        # A worker that was unknown to the store reports once more after it has registered.
        await store.register(worker_record(WORKER))
        async with dispatching(store, ManualExecutions(store), governor=governor, monotonic=now) as dispatch:
            await wait_until(lambda: store.refusals)
            dispatch.wake()
            await wait_until(lambda: len(store.refusals) > 1)
    assert [words.split(",")[0] for words in store.refusals] == ["the load is 10.0", "the load is 11.0"]


async def test_a_rate_is_delivered_though_each_claim_misses_its_token_by_a_hair(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Time passes during a claim: the missing token is there when the pause is computed."""

    class Slow(FailingStore):
        async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
            claims = await super().claim(worker_id, free, limit)
            clock.forward(0.6)
            return claims

    limits = StartLimits(rates=StartRates(labels=parse_rates("linux=1/s:1")))
    rules = StoreRules(new_id=id_source(random.Random(1)), rng=random.Random(1), limits=limits)
    async with Slow.open(tmp_path / "store.db", rules=rules, clock=clock) as store:
        assert isinstance(store, Slow)
        executions = ManualExecutions(store)
        await planned(store, *(job("true", name=f"job-{number}") for number in range(20)))
        async with dispatching(store, executions, slots={"linux": 50}, monotonic=clock):
            # With a polling interval of two seconds after each, it would take 40.
            await executions.until(lambda: len(executions.running) == 20)


async def test_a_cancelled_job_is_asked_to_stop(store: FailingStore, executions: ManualExecutions) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions):
        await executions.until(lambda: "a" in executions.running)
        key = executions.running["a"].key
        await store.cancel_job(key.job_id)
        await executions.until(lambda: not executions.running)
        assert await state_of(store, key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert executions.cancelled == []


async def test_a_lost_attempt_is_ended_at_once(
    store: FailingStore, executions: ManualExecutions, clock: ManualClock
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions, renew_seconds=0.02) as dispatch:
        await executions.until(lambda: "a" in executions.running)
        key = executions.running["a"].key
        while not await store.rescue():
            clock.forward(1000)
        await executions.until(lambda: executions.cancelled == ["a"])
        dispatch.stop_claiming()
        assert (await store.attempts(key.job_id))[0].reason in {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}


@pytest.mark.parametrize("mood", ["away", "hangs"])
async def test_a_lease_that_cannot_be_renewed_for_its_length_is_given_up(
    store: FailingStore, executions: ManualExecutions, mood: str
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions, lease_seconds=0.2, renew_seconds=0.05) as dispatch:
        await executions.until(lambda: "a" in executions.running)
        dispatch.stop_claiming()
        setattr(store, mood, True)
        await executions.until(lambda: executions.cancelled == ["a"])
        setattr(store, mood, False)


async def test_what_was_claimed_a_moment_ago_outlives_a_renewal_that_fails(
    store: FailingStore, executions: ManualExecutions
) -> None:
    async with dispatching(store, executions, lease_seconds=0.4, renew_seconds=0.05) as dispatch:
        store.away = True
        await planned(store, job("true", name="old"), planner="another")
        await executions.until(lambda: len(executions.cancelled) > 0)
        given_up_at = time.monotonic()
        # It is handed back, claimed again, and given up again, but not before a lease has passed.
        await executions.until(lambda: len(executions.cancelled) > 1)
        assert time.monotonic() - given_up_at >= 0.4
        dispatch.stop_claiming()


async def test_a_claim_that_arrives_after_the_end_was_asked_for_goes_back_unstarted(
    store: FailingStore, executions: ManualExecutions
) -> None:
    store.claimed, store.let_go = asyncio.Event(), asyncio.Event()
    run_id = await planned(store, job("true", name="a"))
    async with dispatching(store, executions) as dispatch:
        await store.claimed.wait()
        dispatch.stop_claiming()
        store.let_go.set()
    (view,) = await store.jobs(run_id=run_id, limit=1)
    assert (view.state, view.reason, view.attempt) == (JobState.WAITING, Reason.RELEASED, 1)
    assert executions.running == {}


async def test_an_execution_that_breaks_takes_no_other_with_it(
    store: FailingStore, executions: ManualExecutions
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions):
        await executions.until(lambda: "a" in executions.running)
        executions.breaks = True
        run_id = await planned(store, job("true", name="b"))
        (view,) = await wait_for_stored(
            store,
            lambda: store.jobs(run_id=run_id, limit=1),
            lambda views: views[0].state is JobState.BACKOFF,
        )
        assert "a" in executions.running
        assert view.reason is Reason.EXECUTOR_FAILED


async def test_an_end_that_cannot_be_recorded_takes_no_other_with_it(
    store: FailingStore, executions: ManualExecutions
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions) as dispatch:
        await executions.until(lambda: "a" in executions.running)
        executions.breaks, store.unfinished = True, asyncio.Event()
        await planned(store, job("true", name="b"))
        async with asyncio.timeout(WAIT_SECONDS):
            await store.unfinished.wait()
        executions.breaks, store.unfinished = False, None
        await planned(store, job("true", name="c"))
        await executions.until(lambda: "c" in executions.running)
        assert "a" in executions.running
        assert dispatch.running == 2


async def test_draining_waits_for_what_runs_and_no_longer(
    store: FailingStore, executions: ManualExecutions
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, executions) as dispatch:
        await executions.until(lambda: "a" in executions.running)
        dispatch.stop_claiming()
        draining = asyncio.create_task(dispatch.drain(1000, asyncio.Event()))
        executions.end("a")
        assert await asyncio.wait_for(draining, WAIT_SECONDS) == 0
    assert executions.cancelled == []


@pytest.mark.parametrize("hurried", [False, True], ids=["grace over", "hurried"])
async def test_what_outlives_the_drain_is_handed_back(
    store: FailingStore, executions: ManualExecutions, hurried: bool
) -> None:
    run_id = await planned(store, job("true", name="a"))
    async with dispatching(store, executions) as dispatch:
        await executions.until(lambda: "a" in executions.running)
        dispatch.stop_claiming()
        hurry = asyncio.Event()
        if hurried:
            hurry.set()
        assert await dispatch.drain(1000 if hurried else 0, hurry) == 1
        assert dispatch.running == 0
    (view,) = await store.jobs(run_id=run_id, limit=1)
    assert (view.state, view.reason) == (JobState.WAITING, Reason.RELEASED)


async def test_a_mistake_in_a_claim_or_a_renewal_ends_nothing_that_runs(
    store: FailingStore, executions: ManualExecutions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatching(store, executions):
        await planned(store, job("true", name="a"))
        await executions.until(lambda: "a" in executions.running)
        store.broken = 1
        await planned(store, job("true", name="b"))
        await wait_until(lambda: store.broken == 0)
        await planned(store, job("true", name="c"))
        await executions.until(lambda: {"a", "b"} <= set(executions.running))
        with monkeypatch.context() as patched:
            called = asyncio.Event()

            async def renew(*_: object) -> Renewal:
                called.set()
                raise RuntimeError("a mistake")

            patched.setattr(store, "renew", renew)
            async with asyncio.timeout(WAIT_SECONDS):
                await called.wait()
        for name in ("a", "b"):
            executions.end(name)
        await executions.until(lambda: "c" in executions.running)
        executions.end("c")
        await executions.until(lambda: not executions.running)
    assert executions.cancelled == []


# -- orders ----------------------------------------------------------------------------------------------------------


async def test_a_paused_worker_takes_nothing_new_and_what_it_runs_goes_on(
    store: FailingStore, executions: ManualExecutions
) -> None:
    async with dispatching(store, executions):
        await planned(store, job("true", name="a"))
        await executions.until(lambda: "a" in executions.running)
        await store.steer_worker(WORKER, PauseOrder())
        await planned(store, job("true", name="b"), planner="another")
        executions.end("a")
        await executions.until(lambda: not executions.running)
        assert await store.claim(WORKER, {"linux": 1}, 1) == ()
        await store.steer_worker(WORKER, ResumeOrder())
        await executions.until(lambda: "b" in executions.running)
        executions.end("b")
        await executions.until(lambda: not executions.running)


async def test_a_drained_worker_gets_the_order_and_finishes_its_jobs(
    store: FailingStore, executions: ManualExecutions
) -> None:
    async with dispatching(store, executions) as dispatch:
        await planned(store, job("true", name="a"))
        await executions.until(lambda: "a" in executions.running)
        await store.steer_worker(WORKER, DrainOrder())
        await planned(store, job("true", name="b"), planner="another")
        async with asyncio.timeout(WAIT_SECONDS):
            await dispatch.drain_ordered.wait()
            finishing = asyncio.create_task(dispatch.finish_jobs(asyncio.Event()))
            assert "a" in executions.running
            executions.end("a")
            await finishing
        assert executions.running == {}
        assert executions.cancelled == []


async def test_who_finishes_jobs_can_be_hurried(store: FailingStore, executions: ManualExecutions) -> None:
    async with dispatching(store, executions) as dispatch:
        await planned(store, job("true", name="a"))
        await executions.until(lambda: "a" in executions.running)
        hurry = asyncio.Event()
        hurry.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await dispatch.finish_jobs(hurry)
        assert "a" in executions.running


async def test_a_worker_on_which_the_world_goes_wrong_is_left_alone_and_comes_back_by_itself(
    store: FailingStore, executions: ManualExecutions, clock: ManualClock
) -> None:
    metrics = Metrics()
    executions.outcome = PROVISION_ERRORED
    names = [f"job {number}" for number in range(FAILURES_IN_A_ROW)]
    async with dispatching(store, executions, slots={"linux": len(names)}, metrics=metrics):
        await planned(store, *[job("true", name=name) for name in names])
        await executions.until(lambda: set(executions.running) == set(names))
        for name in names:
            executions.end(name)
        await executions.until(lambda: not executions.running)
        await wait_until(lambda: b"solstice_worker_quarantines_total 1.0" in rendered(metrics))
        view = await store.worker(WORKER)
        assert view is not None
        assert (view.state, view.failures_in_a_row) == (WorkerState.QUARANTINED, FAILURES_IN_A_ROW)
        executions.outcome = SUCCEEDED
        await planned(store, job("true", name="after"), planner="another")
        assert await store.claim(WORKER, {"linux": 1}, 1) == ()
        clock.forward(FIRST_SECONDS + OTHERS_FIRST_SECONDS)
        await executions.until(lambda: "after" in executions.running)
        executions.end("after")
        await executions.until(lambda: "after" not in executions.running)
        view = await store.worker(WORKER)
        assert view is not None
        assert (view.state, view.failures_in_a_row) == (WorkerState.ACTIVE, 0)
        for name in executions.running:
            executions.end(name)


async def test_the_end_of_a_quarantine_is_noticed_long_before_the_next_renewal(
    store: FailingStore, executions: ManualExecutions, clock: ManualClock
) -> None:
    def seen() -> list[str]:
        return [event["state"] for event in events if event["event"] == LogEvent.WORKER_STATE_CHANGED]

    # Leases of a day: only the quarantine makes the loop ask the store again during this test.
    day = 24 * 3600.0
    with capture_logs() as events:
        async with dispatching(store, executions, lease_seconds=3 * day, renew_seconds=day):
            await wait_until_registered(store)
            await store.steer_worker(WORKER, QuarantineOrder(seconds=FIRST_SECONDS))
            await wait_until(lambda: seen() == ["quarantined"])
            # The time passes without a notification.
            clock.forward(FIRST_SECONDS)
            await wait_until(lambda: seen() == ["quarantined", "active"])


async def test_a_worker_that_the_store_forgot_registers_again(
    store: FailingStore, executions: ManualExecutions, clock: ManualClock
) -> None:
    async with dispatching(store, executions):
        await wait_until_registered(store)
        clock.forward(FORGET_SECONDS + 1)
        await store.rescue()
        await wait_until_registered(store)


async def wait_until_registered(store: FailingStore) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while (view := await store.worker(WORKER)) is None or not view.slots:  # noqa: ASYNC110  heartbeats send no notification
            await asyncio.sleep(0.01)


def rendered(metrics: Metrics) -> bytes:
    return metrics.render({}, BrokerHealth(connected=True))
