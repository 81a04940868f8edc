"""`orchestrator run` as a process: signals, a killed worker, two that share work."""

import asyncio

import httpx2
import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.worker.execution import HANDED_BACK
from tests.gated_jobs import (
    GatedJob,
    all_ended,
    publish_requests,
    read_log,
    wait_for_jobs,
    wait_for_log,
    wait_until_running,
)
from tests.servers.orchestrator import SharedFiles, orchestrator


async def test_a_request_becomes_a_job_a_log_and_a_result(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    gated_job.open_gate()
    with orchestrator(shared_files) as process:
        await publish_requests(shared_files, gated_job)
        (view,) = await wait_for_jobs(store, all_ended)
        assert (view.state, view.worker_id) == (JobState.SUCCEEDED, process.worker_id)
        assert b"it ends" in await read_log(store, view.job_id)
        async with httpx2.AsyncClient() as client:
            ready = await client.get(f"{process.url}/readyz")
        assert ready.status_code == 200
        process.terminate()
        assert await asyncio.to_thread(process.ended) == 0


async def test_sigterm_lets_a_running_job_finish_and_takes_nothing_new(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files, DRAIN_SECONDS="60") as process:
        await publish_requests(shared_files, gated_job)
        running = await wait_until_running(store)
        process.terminate()
        await asyncio.to_thread(process.logged, "orchestrator.drain_begun")
        await wait_for_log(store, running.job_id, b"! this worker drains: a job that has not ended in 60 s")
        await publish_requests(shared_files, gated_job)
        gated_job.open_gate()
        assert await asyncio.to_thread(process.ended) == 0
    assert [view.state for view in await store.jobs(limit=9)] == [JobState.SUCCEEDED]
    with orchestrator(shared_files):
        views = await wait_for_jobs(store, lambda views: len(views) == 2 and all_ended(views))
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2
    assert gated_job.begun == 2


@pytest.mark.parametrize("signals", [1, 2], ids=["grace over", "second signal"])
async def test_what_does_not_finish_is_handed_back_and_runs_elsewhere(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore, signals: int
) -> None:
    with orchestrator(shared_files, DRAIN_SECONDS="0.1" if signals == 1 else "600") as process:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        process.terminate()
        if signals == 2:
            await asyncio.to_thread(process.logged, "orchestrator.drain_begun")
            process.terminate()
        assert await asyncio.to_thread(process.ended) == 0
        assert process.logged("orchestrator.drained")["handed_back"] == 1
    log_text = await read_log(store, view.job_id)
    assert b"it runs\n! this worker drains: " in log_text
    assert log_text.endswith(f"! {HANDED_BACK}\n".encode())
    after = await store.job(view.job_id)
    assert after is not None
    assert (after.state, after.reason) == (JobState.WAITING, Reason.RELEASED)
    gated_job.open_gate()
    with orchestrator(shared_files):
        await wait_for_jobs(store, all_ended)
    attempts = await store.attempts(view.job_id)
    assert [attempt.reason for attempt in attempts] == [Reason.RELEASED, Reason.COMPLETED]
    assert gated_job.begun == 2


async def test_the_job_of_a_killed_worker_is_finished_by_another(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files) as victim:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        victim.kill()
    gated_job.open_gate()
    with orchestrator(shared_files) as successor:
        (after,) = await wait_for_jobs(store, all_ended)
        assert (after.state, after.worker_id) == (JobState.SUCCEEDED, successor.worker_id)
    attempts = await store.attempts(view.job_id)
    assert [attempt.reason for attempt in attempts] == [Reason.AGENT_LOST, Reason.COMPLETED]
    assert gated_job.begun == 2


async def test_two_orchestrators_share_the_work(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with (
        orchestrator(shared_files, CAPACITY_MAP="linux=1") as one,
        orchestrator(shared_files, CAPACITY_MAP="linux=1") as two,
    ):
        await publish_requests(shared_files, gated_job, 3)
        views = await wait_for_jobs(
            store, lambda views: sum(view.state is JobState.RUNNING for view in views) == 2
        )
        holders = {view.worker_id for view in views if view.state is JobState.RUNNING}
        assert holders == {one.worker_id, two.worker_id}
        gated_job.open_gate()
        views = await wait_for_jobs(store, lambda views: len(views) == 3 and all_ended(views))
    assert [view.attempt for view in views] == [1, 1, 1]
    assert gated_job.begun == 3


async def test_a_cancelled_job_ends_wherever_it_runs(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files):
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        await store.cancel_job(view.job_id)
        (after,) = await wait_for_jobs(store, all_ended)
    assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


async def test_the_store_gives_the_real_state_to_an_orchestrator_that_was_frozen(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files) as frozen:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        frozen.freeze_between_writes(shared_files)
        with orchestrator(shared_files) as successor:
            await wait_for_jobs(
                store, lambda views: [each.worker_id for each in views] == [successor.worker_id]
            )
            frozen.thaw()
            lost = await asyncio.to_thread(frozen.logged, "lease.lost")
            assert lost["job_id"] == view.job_id
            gated_job.open_gate()
            (after,) = await wait_for_jobs(store, all_ended)
    assert (after.state, after.attempt) == (JobState.SUCCEEDED, 2)
