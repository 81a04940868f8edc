"""Workers as real processes obey orders, also after a restart."""

import asyncio
import time
from pathlib import Path

import httpx2

from solstice_common.messages.states import JobState
from solstice_orchestrator.scheduling.workers import (
    DrainOrder,
    PauseOrder,
    Presence,
    ResumeOrder,
    WorkerState,
)
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.views import JobView
from tests.gated_jobs import Commit, GatedJob, all_ended, publish_requests, wait_for_jobs, wait_until_running
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator

SPOILED = "".join(
    f'job "spoiled-{number}" {{ step "fetch" run="error provision_failed"; }}\n' for number in range(3)
)
ONE_SPOILED = 'job "spoiled" { step "fetch" run="crash it"; }'
GOOD = 'job "good" { step "say" run="say well"; }'


async def has_ended(process: OrchestratorProcess) -> int:
    return await asyncio.to_thread(process.ended)


async def test_a_drained_worker_finishes_its_job_however_long_and_ends_well(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files, DRAIN_SECONDS="0", WORKER_NAME="quay") as process:
        await publish_requests(shared_files, gated_job)
        await wait_until_running(store)
        await store.steer_worker(process.worker_id, DrainOrder())
        assert await asyncio.to_thread(process.logged, "orchestrator.drain_ordered")
        await publish_requests(shared_files, gated_job)
        async with httpx2.AsyncClient(base_url=process.url) as client:
            (worker,) = (await client.get("/api/v1/workers")).json()["workers"]
        assert (worker["name"], worker["state"], len(worker["jobs"])) == ("quay", "draining", 1)
        gated_job.open_gate()
        assert await has_ended(process) == 0
        assert process.logged("orchestrator.drained")["handed_back"] == 0
    assert [view.state for view in await store.jobs(limit=9)] == [JobState.SUCCEEDED]
    (after,) = await store.workers()
    assert after.presence is Presence.ENDED
    with orchestrator(shared_files, WORKER_NAME="quay") as successor:
        views = await wait_for_jobs(store, lambda views: len(views) == 2 and all_ended(views))
        assert {view.state for view in views} == {JobState.SUCCEEDED}
        (now,) = await store.workers()
        assert (now.worker_id, now.state) == (successor.worker_id, WorkerState.ACTIVE)


async def test_sigterm_cuts_a_drain_short(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    with orchestrator(shared_files, DRAIN_SECONDS="0") as process:
        await publish_requests(shared_files, gated_job)
        await wait_until_running(store)
        await store.steer_worker(process.worker_id, DrainOrder())
        await asyncio.to_thread(process.logged, "orchestrator.drain_ordered")
        process.terminate()
        assert await has_ended(process) == 0
        assert process.logged("orchestrator.drained")["handed_back"] == 1


async def test_a_paused_worker_takes_nothing_also_after_a_restart_until_it_is_resumed(
    shared_files: SharedFiles, gated_job: GatedJob, store: JobStore
) -> None:
    gated_job.open_gate()
    with orchestrator(shared_files, WORKER_NAME="quay") as process:
        await store.steer_worker(process.worker_id, PauseOrder())
        await asyncio.to_thread(process.logged, "worker.state_changed")
        process.kill()
    with (
        orchestrator(shared_files, WORKER_NAME="quay") as paused,
        orchestrator(shared_files, WORKER_NAME="pier", CAPACITY_MAP="illumos=1") as planner,
    ):
        assert paused.logged("orchestrator.started")["state"] == "paused"
        await publish_requests(shared_files, gated_job)
        await wait_for_jobs(store, lambda views: [view.state for view in views] == [JobState.WAITING])
        assert planner.logged("run.planned")
        await store.steer_worker(paused.worker_id, ResumeOrder())
        (after,) = await wait_for_jobs(store, all_ended)
        assert (after.state, after.worker_id) == (JobState.SUCCEEDED, paused.worker_id)


async def test_a_worker_without_what_jobs_need_is_left_alone_also_after_a_restart(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    spoiled = Repository(tmp_path / "spoiled")
    commit = spoiled.commit({".solstice/workflow.kdl": SPOILED})
    settings = {"EXECUTOR": "scripted", "WORKER_NAME": "quay"}
    with orchestrator(shared_files, **settings) as process:
        await publish_requests(shared_files, Commit(spoiled, commit, "bad/committer"))
        paused_event = await asyncio.to_thread(process.logged, "worker.state_changed")
        assert (paused_event["was"], paused_event["state"]) == ("active", "quarantined")
        process.kill()
    with orchestrator(shared_files, **settings) as successor:
        state = successor.logged("orchestrator.started")["state"]
        # The first quarantine is short: a machine that is busy may take longer to start a process.
        assert state == "quarantined" or time.time() > paused_event["quarantined_until"]
        worker = await store.worker(successor.worker_id)
        assert worker is not None
        assert worker.failures_in_a_row == 3


async def test_after_a_quarantine_the_job_of_another_repository_goes_first(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    spoiled, good = Repository(tmp_path / "spoiled"), Repository(tmp_path / "good")
    bad = Commit(spoiled, spoiled.commit({".solstice/workflow.kdl": SPOILED}), "bad/committer")
    # One slot, and retries that are due long before the quarantine ends: the first job then is alone.
    with orchestrator(shared_files, EXECUTOR="scripted", CAPACITY_MAP="linux=1") as process:
        await publish_requests(shared_files, bad)
        until = (await asyncio.to_thread(process.logged, "worker.state_changed"))["quarantined_until"]
        await publish_requests(
            shared_files, Commit(good, good.commit({".solstice/workflow.kdl": GOOD}), "good/neighbour")
        )
        views = await wait_for_jobs(store, lambda views: len(views) == 4 and any(map(has_succeeded, views)))
    (first,) = filter(has_succeeded, views)
    begun = [
        attempt.started_at
        for view in views
        if view is not first
        for attempt in await store.attempts(view.job_id)
    ]
    assert first.started_at is not None
    assert until <= first.started_at
    assert [at for at in begun if until <= at <= first.started_at] == []
    assert sum(at < until for at in begun) >= 3


def has_succeeded(view: JobView) -> bool:
    return view.state is JobState.SUCCEEDED


async def test_one_job_that_breaks_its_executor_however_often_it_is_pushed_quarantines_no_worker(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    spoiled = Repository(tmp_path / "spoiled")
    bad = Commit(spoiled, spoiled.commit({".solstice/workflow.kdl": ONE_SPOILED}), "bad/committer")
    with orchestrator(shared_files, EXECUTOR="scripted", RETRY_BASE_SECONDS="0") as process:
        await publish_requests(shared_files, bad, 5)
        views = await wait_for_jobs(store, lambda views: len(views) == 5 and all_ended(views))
        assert {(view.state, view.attempt) for view in views} == {(JobState.ERRORED, 3)}
        (worker,) = await store.workers()
        assert (worker.state, worker.failures_in_a_row) == (WorkerState.ACTIVE, 1)
        assert "worker.state_changed" not in {event.get("event") for event in process.events}
