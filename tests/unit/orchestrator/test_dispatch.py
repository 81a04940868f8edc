"""Dispatch against a real store, with executions that the test ends by hand."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.capacity import capacity
from solstice_orchestrator.dispatch import Dispatch
from solstice_orchestrator.identifiers import id_source
from solstice_orchestrator.jobs import JobState, Outcome, Reason
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import AttemptKey, Claim, Renewal
from solstice_orchestrator.store.sqlite import SqliteStore
from solstice_orchestrator.store.transaction import Rules
from tests.builders import job
from tests.stores import CANCELLED, RELEASED, SUCCEEDED, WORKER, Clock, planned, state_of

WAIT_SECONDS = 30


class Play:
    """Executions that last until the test says so."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.running: dict[str, Claim] = {}
        self.cancelled: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.breaks = False

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
            await self._store.finish(claim.key, CANCELLED if stop.is_set() else SUCCEEDED)
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


class MoodyStore(SqliteStore):
    """Away for renewals, or silent, while told so; holds claims back, or breaks over an end, while told so."""

    away = False
    hangs = False
    claimed_and_held: asyncio.Event | None = None
    let_go: asyncio.Event | None = None
    unfinished: asyncio.Event | None = None

    async def renew(self, worker_id: str, held: Sequence[AttemptKey]) -> Renewal:
        if self.away:
            raise StoreUnavailable("the test's store", "it is in a mood")
        if self.hangs:
            await asyncio.Event().wait()
        return await super().renew(worker_id, held)

    async def finish(self, key: AttemptKey, outcome: Outcome) -> bool:
        if self.unfinished is not None:
            self.unfinished.set()
            raise RuntimeError("a mistake")
        return await super().finish(key, outcome)

    async def claim(self, worker_id: str, free: Mapping[str, int], limit: int) -> Sequence[Claim]:
        claims = await super().claim(worker_id, free, limit)
        if claims and self.claimed_and_held is not None and self.let_go is not None:
            self.claimed_and_held.set()
            await self.let_go.wait()
        return claims


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[MoodyStore]:
    rng = random.Random(1)
    rules = Rules(new_id=id_source(rng), rng=rng)
    async with MoodyStore.open(tmp_path / "store.db", rules=rules, clock=clock) as opened:
        assert isinstance(opened, MoodyStore)
        yield opened


@pytest.fixture
def play(store: MoodyStore) -> Play:
    return Play(store)


@asynccontextmanager
async def dispatching(
    store: MoodyStore,
    play: Play,
    *,
    slots: Mapping[str, int] | None = None,
    limit: int = 0,
    lease_seconds: float = 60.0,
    renew_seconds: float = 0.05,
) -> AsyncIterator[Dispatch]:
    async with asyncio.TaskGroup() as jobs, asyncio.TaskGroup() as loops:
        dispatch = Dispatch(
            store=store,
            execute=play,
            worker_id=WORKER,
            capacity=capacity(slots or {"linux": 2}, limit),
            jobs=jobs,
            metrics=Metrics(),
            rng=random.Random(1),
            lease_seconds=lease_seconds,
            renew_seconds=renew_seconds,
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
    store: MoodyStore, play: Play
) -> None:
    async with dispatching(store, play, slots={"linux": 2, "illumos": 1}):
        for name in ("a", "b", "c"):
            await planned(store, job("true", name=name))
        await planned(store, job("true", name="i", runs_on="illumos"))
        await play.until(lambda: len(play.running) == 3)
        assert sorted(play.running) == ["a", "b", "i"]
        play.end("a")
        await play.until(lambda: "c" in play.running)
        assert "a" not in play.running


async def test_the_limit_over_all_labels_holds(store: MoodyStore, play: Play) -> None:
    for name, label in (("a", "linux"), ("b", "illumos"), ("c", "linux")):
        await planned(store, job("true", name=name, runs_on=label))
    async with dispatching(store, play, slots={"linux": 9, "illumos": 9}, limit=2):
        await play.until(lambda: len(play.running) == 2)
        play.end("a")
        await play.until(lambda: "c" in play.running)
        assert sorted(play.running) == ["b", "c"]


async def test_a_cancelled_job_is_told_to_stop(store: MoodyStore, play: Play) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play):
        await play.until(lambda: "a" in play.running)
        key = play.running["a"].key
        await store.cancel_job(key.job_id)
        await play.until(lambda: not play.running)
        assert await state_of(store, key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert play.cancelled == []


async def test_a_lost_attempt_is_ended_at_once(store: MoodyStore, play: Play, clock: Clock) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play, renew_seconds=0.02) as dispatch:
        await play.until(lambda: "a" in play.running)
        key = play.running["a"].key
        while not await store.rescue():
            clock.forward(1000)
        await play.until(lambda: play.cancelled == ["a"])
        dispatch.stop_claiming()
        assert (await store.attempts(key.job_id))[0].reason in {Reason.AGENT_LOST, Reason.LEASE_EXPIRED}


@pytest.mark.parametrize("mood", ["away", "hangs"])
async def test_a_lease_that_cannot_be_renewed_for_its_length_is_given_up(
    store: MoodyStore, play: Play, mood: str
) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play, lease_seconds=0.2, renew_seconds=0.05) as dispatch:
        await play.until(lambda: "a" in play.running)
        dispatch.stop_claiming()
        setattr(store, mood, True)
        await play.until(lambda: play.cancelled == ["a"])
        setattr(store, mood, False)


async def test_a_claim_that_arrives_after_the_end_was_asked_for_goes_back_unstarted(
    store: MoodyStore, play: Play
) -> None:
    store.claimed_and_held, store.let_go = asyncio.Event(), asyncio.Event()
    run_id = await planned(store, job("true", name="a"))
    async with dispatching(store, play) as dispatch:
        await store.claimed_and_held.wait()
        dispatch.stop_claiming()
        store.let_go.set()
    (view,) = await store.jobs(run_id=run_id, limit=1)
    assert (view.state, view.reason, view.attempt) == (JobState.WAITING, Reason.RELEASED, 1)
    assert play.running == {}


async def test_an_execution_that_breaks_takes_no_other_with_it(store: MoodyStore, play: Play) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play):
        await play.until(lambda: "a" in play.running)
        play.breaks = True
        run_id = await planned(store, job("true", name="b"))
        async with asyncio.timeout(WAIT_SECONDS), store.changes() as changed:
            while (await store.jobs(run_id=run_id, limit=1))[0].state is not JobState.BACKOFF:
                changed.clear()
                await changed.wait()
        assert "a" in play.running
        (view,) = await store.jobs(run_id=run_id, limit=1)
        assert view.reason is Reason.EXECUTOR_FAILED


async def test_an_end_that_cannot_be_recorded_takes_no_other_with_it(store: MoodyStore, play: Play) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play) as dispatch:
        await play.until(lambda: "a" in play.running)
        play.breaks, store.unfinished = True, asyncio.Event()
        await planned(store, job("true", name="b"))
        async with asyncio.timeout(WAIT_SECONDS):
            await store.unfinished.wait()
        play.breaks, store.unfinished = False, None
        await planned(store, job("true", name="c"))
        await play.until(lambda: "c" in play.running)
        assert "a" in play.running
        assert dispatch.running == 2


async def test_draining_waits_for_what_runs_and_no_longer(store: MoodyStore, play: Play) -> None:
    await planned(store, job("true", name="a"))
    async with dispatching(store, play) as dispatch:
        await play.until(lambda: "a" in play.running)
        dispatch.stop_claiming()
        draining = asyncio.create_task(dispatch.drain(1000, asyncio.Event()))
        play.end("a")
        assert await asyncio.wait_for(draining, WAIT_SECONDS) == 0
    assert play.cancelled == []


@pytest.mark.parametrize("hurried", [False, True], ids=["grace over", "hurried"])
async def test_what_outlives_the_drain_is_handed_back(store: MoodyStore, play: Play, hurried: bool) -> None:
    run_id = await planned(store, job("true", name="a"))
    async with dispatching(store, play) as dispatch:
        await play.until(lambda: "a" in play.running)
        dispatch.stop_claiming()
        hurry = asyncio.Event()
        if hurried:
            hurry.set()
        assert await dispatch.drain(1000 if hurried else 0, hurry) == 1
        assert dispatch.running == 0
    (view,) = await store.jobs(run_id=run_id, limit=1)
    assert (view.state, view.reason) == (JobState.WAITING, Reason.RELEASED)
