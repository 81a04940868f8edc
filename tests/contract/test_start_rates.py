"""Rates of starts, pressure of workers and the backlog in every job store."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_common.storage.sqlite import SqliteDatabase
from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.workers import WorkerPressure
from solstice_orchestrator.store import JobStore
from tests.builders import job
from tests.stores import (
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    planning_task,
    waiting_jobs,
    why_last,
    worker_record,
)

Open = Callable[..., AbstractAsyncContextManager[JobStore]]


@pytest.fixture
def opened(opened: OpenStore) -> Open:
    """The test's store, with these rates."""

    def connect(
        labels: str = "", repositories: str = "", caps: str = ""
    ) -> AbstractAsyncContextManager[JobStore]:
        rates = StartRates(labels=parse_rates(labels), repositories=parse_rates(repositories))
        return opened(rates=rates, caps=parse_caps(caps))

    return connect


async def starts(store: JobStore, *labels: str) -> int:
    return len(await claimed(store, free=dict.fromkeys(labels or ("linux",), 100)))


class TestLabels:
    async def test_a_burst_then_the_rate_and_never_more_than_a_burst_again(
        self, opened: Open, clock: ManualClock
    ) -> None:
        async with opened("linux=10/s:20") as store:
            await waiting_jobs(store, 200)
            seen = [await starts(store)]
            for pause in (0.0, 0.0625, 0.0625, 1.0, 60.0):
                clock.forward(pause)
                seen.append(await starts(store))
        assert seen == [20, 0, 0, 1, 10, 20]

    async def test_other_labels_are_free(self, opened: Open) -> None:
        async with opened("linux=1/s") as store:
            await waiting_jobs(store, 5)
            await waiting_jobs(store, 5, label="illumos")
            assert await starts(store, "linux", "illumos") == 6

    async def test_each_other_label_has_a_bucket_of_its_own(self, opened: Open) -> None:
        async with opened("*=3/s") as store:
            await waiting_jobs(store, 5)
            await waiting_jobs(store, 5, label="illumos")
            assert await starts(store, "linux", "illumos") == 6

    async def test_all_orchestrators_take_from_one_bucket(self, opened: Open, clock: ManualClock) -> None:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(opened("linux=10/s")) for _ in range(4)]
            await waiting_jobs(stores[0], 100)
            for expected in (10, 10, 10):
                claims = await asyncio.gather(
                    *(
                        store.claim(f"worker-{number}", {"linux": 100}, 100)
                        for number, store in enumerate(stores)
                    )
                )
                assert sum(map(len, claims)) == expected
                clock.forward(1)

    async def test_when_to_look_again(self, opened: Open, clock: ManualClock) -> None:
        async with opened("linux=10/s:2") as store:
            await waiting_jobs(store, 10)
            assert await store.rate_pause() is None
            await starts(store)
            assert await store.rate_pause() == pytest.approx(0.1, abs=1e-5)
            clock.forward(0.06)
            assert await store.rate_pause() == pytest.approx(0.04, abs=1e-5)
            clock.forward(0.05)
            assert await store.rate_pause() is None

    @pytest.mark.parametrize("scope", ["label", "repository"])
    async def test_a_token_that_a_claim_missed_by_a_hair_is_taken_at_once(
        self, opened: Open, clock: ManualClock, scope: str
    ) -> None:
        rates = {"labels": "linux=10/s:1"} if scope == "label" else {"repositories": "reef/tide=10/s:1"}
        async with opened(**rates) as store:
            await waiting_jobs(store, 10, repository="reef/tide")
            assert await starts(store) == 1
            clock.forward(0.099)
            assert await starts(store) == 0
            clock.forward(0.002)
            # The bucket is full again, as if it had delayed nothing.
            assert await store.rate_pause() is None
            assert await store.rate_pause(0.003) == 0
            assert await starts(store) == 1

    async def test_a_token_that_comes_while_the_question_waits_for_the_database_is_taken_at_once(
        self, opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy machine each worker then slept for two seconds."""

        def slow(read: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
            async def reading(database: object, work: object) -> object:
                clock.forward(0.05)
                return await read(database, work)

            return reading

        async with opened("linux=10/s:1") as store:
            await waiting_jobs(store, 10)
            assert await starts(store) == 1
            clock.forward(0.099)
            assert await starts(store) == 0
            for database in (SqliteDatabase, PostgreSQLDatabase):
                monkeypatch.setattr(database, "read", slow(database.read))
            assert await store.rate_pause(0.001) == 0

    async def test_without_rates_nothing_waits_and_nothing_is_kept(self, store: JobStore) -> None:
        await waiting_jobs(store, 50)
        assert await starts(store) == 50
        assert await store.rate_pause() is None


class TestRepositories:
    async def test_one_that_has_had_its_share_delays_no_other(self, opened: Open, clock: ManualClock) -> None:
        async with opened(repositories="reef/tide=1/s:2") as store:
            await waiting_jobs(store, 30, repository="reef/tide")
            await waiting_jobs(store, 30)
            assert await starts(store) == 32
            clock.forward(1)
            assert await starts(store) == 1

    async def test_a_claim_that_sees_only_its_jobs_looks_on(self, opened: Open) -> None:
        async with opened(repositories="reef/tide=1/h") as store:
            await waiting_jobs(store, 30, repository="reef/tide")
            await waiting_jobs(store, 3)
            assert len(await claimed(store, free={"linux": 2}, limit=2)) == 2
            assert len(await claimed(store, free={"linux": 2}, limit=2)) == 2

    async def test_cap_and_rate_hold_together(self, opened: Open, clock: ManualClock) -> None:
        async with opened(repositories="*=5/s", caps="*=7") as store:
            await waiting_jobs(store, 30)
            seen = [await starts(store)]
            for _ in range(2):
                clock.forward(1)
                seen.append(await starts(store))
        assert seen == [5, 2, 0]

    async def test_label_and_repository_are_both_asked(self, opened: Open, clock: ManualClock) -> None:
        async with opened("linux=4/s", "*=3/s") as store:
            await waiting_jobs(store, 30)
            await waiting_jobs(store, 30, repository="reef/tide")
            seen = []
            for _ in range(3):
                seen.append(await starts(store))
                clock.forward(1)
        assert seen == [4, 4, 4]


class TestWhy:
    async def test_a_job_over_the_rate_says_so_and_when(self, opened: Open, clock: ManualClock) -> None:
        async with opened("linux=10/s:1") as store:
            await store.register(worker_record(WORKER))
            run_id = await waiting_jobs(store, 4)
            await claimed(store, free={"linux": 1})
            why = await why_last(store, run_id)
        assert (why.reason, why.resource, why.ahead) == (WaitReason.RATE_LIMITED, "label", 2)
        assert why.until == pytest.approx(clock.now + 0.3, abs=1e-4)
        assert "10/s:1" in why.detail

    async def test_the_rate_of_its_repository_is_the_reason(self, opened: Open, clock: ManualClock) -> None:
        async with opened(repositories="lantern/harbour=6/m") as store:
            await store.register(worker_record(WORKER))
            run_id = await waiting_jobs(store, 2)
            await claimed(store, free={"linux": 1})
            why = await why_last(store, run_id)
        assert (why.reason, why.resource) == (WaitReason.RATE_LIMITED, "repository")
        assert why.until == pytest.approx(clock.now + 10, abs=1e-4)

    async def test_what_a_worker_is_short_of_is_reported_with_its_age(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER, name="quay"))
        run_id = await waiting_jobs(store, 1)
        await store.report(WORKER, WorkerPressure(refuses=Resource.LOAD, refusal="the load is 50.0"))
        clock.forward(7)
        detail = (await why_last(store, run_id)).detail
        assert "quay starts nothing while the load is 50.0 (measured 7 s ago)" in detail

    async def test_workers_that_refuse_are_named_with_the_resource(self, store: JobStore) -> None:
        await store.register(worker_record(WORKER, name="quay"))
        run_id = await waiting_jobs(store, 1)
        assert (await why_last(store, run_id)).reason is WaitReason.SLOTS_BUSY
        await store.report(WORKER, WorkerPressure(refuses=Resource.DISK, refusal="1.0 % of the disk is free"))
        why = await why_last(store, run_id)
        assert (why.reason, why.resource) == (WaitReason.GOVERNOR, "disk")
        assert "governor(disk): quay starts nothing while 1.0 % of the disk is free" in why.detail
        await store.register(worker_record("worker-b"))
        assert (await why_last(store, run_id)).reason is WaitReason.SLOTS_BUSY

    async def test_slots_that_were_given_up_are_not_free(self, store: JobStore) -> None:
        await store.register(worker_record(WORKER))
        run_id = await waiting_jobs(store, 3)
        await claimed(store, free={"linux": 1})
        await store.report(WORKER, WorkerPressure(shrunk_to=1))
        why = await why_last(store, run_id)
        assert why.reason is WaitReason.SLOTS_BUSY
        assert "Others have the slot of linux (1 worker fewer at once for now" in why.detail


class TestCondition:
    async def test_it_is_shown_and_gone_with_the_process(self, store: JobStore) -> None:
        await store.register(worker_record(WORKER))
        await store.report(
            WORKER, WorkerPressure(shrunk_to=2, refuses=Resource.LOAD, refusal="the load is 9")
        )
        view = await store.worker(WORKER)
        assert view is not None
        assert (view.limit, view.shrunk_to, view.at_once) == (5, 2, 2)
        assert (view.refuses, view.refusal) == (Resource.LOAD, "the load is 9")
        await store.renew(WORKER, [])
        assert (await store.worker(WORKER)) == view
        await store.report(WORKER, WorkerPressure())
        view = await store.worker(WORKER)
        assert view is not None
        assert (view.at_once, view.refuses, view.refusal) == (5, None, "")

    async def test_an_unknown_worker_has_no_pressure(self, store: JobStore) -> None:
        await store.report("stranger", WorkerPressure(shrunk_to=1))
        assert await store.worker("stranger") is None


async def test_the_backlog_is_runs_to_plan_and_jobs_that_wait(store: JobStore) -> None:
    assert await store.backlog(100) == 0
    await admitted(store)
    assert await store.backlog(100) == 1
    await store.planned(await planning_task(store), [job("true", name=name) for name in "abc"])
    assert await store.backlog(100) == 3
    assert await store.backlog(2) == 2
    await claimed(store, limit=1)
    assert await store.backlog(100) == 2
