"""`orchestrator run` for real: signals at the wrong moment, a killed worker, two that share the work."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.worker.execution import HANDED_BACK
from tests.servers.orchestrator import Place, orchestrator
from tests.yard import Yard, ask_for, ended, job_runs, jobs_become, log_of, log_says


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(directory=tmp_path)


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[JobStore]:
    async with open_store(place.database_url) as opened:
        yield opened


async def test_a_request_becomes_a_job_a_log_and_a_result(place: Place, yard: Yard, store: JobStore) -> None:
    yard.open_gate()
    with orchestrator(place) as process:
        await ask_for(place, yard)
        (view,) = await jobs_become(store, ended)
        assert (view.state, view.worker_id) == (JobState.SUCCEEDED, process.worker_id)
        assert b"it ends" in await log_of(store, view.job_id)
        async with httpx2.AsyncClient() as client:
            ready = await client.get(f"{process.url}/readyz")
        assert ready.status_code == 200
        process.terminate()
        assert await asyncio.to_thread(process.ended) == 0


async def test_sigterm_lets_a_running_job_finish_and_takes_nothing_new(
    place: Place, yard: Yard, store: JobStore
) -> None:
    with orchestrator(place, DRAIN_SECONDS="60") as process:
        await ask_for(place, yard)
        running = await job_runs(store)
        process.terminate()
        await asyncio.to_thread(process.logged, "orchestrator.drain_begun")
        await log_says(store, running.job_id, b"! this worker drains: a job that has not ended in 60 s")
        await ask_for(place, yard)
        yard.open_gate()
        assert await asyncio.to_thread(process.ended) == 0
    assert [view.state for view in await store.jobs(limit=9)] == [JobState.SUCCEEDED]
    with orchestrator(place):
        views = await jobs_become(store, lambda views: len(views) == 2 and ended(views))
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2
    assert yard.begun == 2


@pytest.mark.parametrize("signals", [1, 2], ids=["grace over", "second signal"])
async def test_what_does_not_finish_is_handed_back_and_runs_elsewhere(
    place: Place, yard: Yard, store: JobStore, signals: int
) -> None:
    with orchestrator(place, DRAIN_SECONDS="0.1" if signals == 1 else "600") as process:
        await ask_for(place, yard)
        view = await job_runs(store)
        process.terminate()
        if signals == 2:
            await asyncio.to_thread(process.logged, "orchestrator.drain_begun")
            process.terminate()
        assert await asyncio.to_thread(process.ended) == 0
        assert process.logged("orchestrator.drained")["handed_back"] == 1
    said = await log_of(store, view.job_id)
    assert b"it runs\n! this worker drains: " in said
    assert said.endswith(f"! {HANDED_BACK}\n".encode())
    after = await store.job(view.job_id)
    assert after is not None
    assert (after.state, after.reason) == (JobState.WAITING, Reason.RELEASED)
    yard.open_gate()
    with orchestrator(place):
        await jobs_become(store, ended)
    attempts = await store.attempts(view.job_id)
    assert [attempt.reason for attempt in attempts] == [Reason.RELEASED, Reason.COMPLETED]
    assert yard.begun == 2


async def test_the_job_of_a_killed_worker_is_finished_by_another(
    place: Place, yard: Yard, store: JobStore
) -> None:
    with orchestrator(place) as victim:
        await ask_for(place, yard)
        view = await job_runs(store)
        victim.kill()
    yard.open_gate()
    with orchestrator(place) as heir:
        (after,) = await jobs_become(store, ended)
        assert (after.state, after.worker_id) == (JobState.SUCCEEDED, heir.worker_id)
    attempts = await store.attempts(view.job_id)
    assert [attempt.reason for attempt in attempts] == [Reason.AGENT_LOST, Reason.COMPLETED]
    assert yard.begun == 2


async def test_two_orchestrators_share_the_work(place: Place, yard: Yard, store: JobStore) -> None:
    with (
        orchestrator(place, CAPACITY_MAP="linux=1") as one,
        orchestrator(place, CAPACITY_MAP="linux=1") as two,
    ):
        await ask_for(place, yard, 3)
        views = await jobs_become(
            store, lambda views: sum(view.state is JobState.RUNNING for view in views) == 2
        )
        holders = {view.worker_id for view in views if view.state is JobState.RUNNING}
        assert holders == {one.worker_id, two.worker_id}
        yard.open_gate()
        views = await jobs_become(store, lambda views: len(views) == 3 and ended(views))
    assert [view.attempt for view in views] == [1, 1, 1]
    assert yard.begun == 3


async def test_a_cancelled_job_ends_wherever_it_runs(place: Place, yard: Yard, store: JobStore) -> None:
    with orchestrator(place):
        await ask_for(place, yard)
        view = await job_runs(store)
        await store.cancel_job(view.job_id)
        (after,) = await jobs_become(store, ended)
    assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


async def test_the_store_tells_the_truth_to_an_orchestrator_that_was_frozen(
    place: Place, yard: Yard, store: JobStore
) -> None:
    with orchestrator(place) as frozen:
        await ask_for(place, yard)
        view = await job_runs(store)
        frozen.freeze_between_writes(place)
        with orchestrator(place) as heir:
            await jobs_become(store, lambda views: [each.worker_id for each in views] == [heir.worker_id])
            frozen.thaw()
            lost = await asyncio.to_thread(frozen.logged, "lease.lost")
            assert lost["job_id"] == view.job_id
            yard.open_gate()
            (after,) = await jobs_become(store, ended)
    assert (after.state, after.attempt) == (JobState.SUCCEEDED, 2)
