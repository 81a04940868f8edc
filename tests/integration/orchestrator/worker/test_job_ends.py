"""Jobs end on real orchestrators: cancelled, out of time, silent, or out of retries."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.workers import DrainOrder
from solstice_orchestrator.store import JobStore, open_store
from tests.executor_harness import NEEDS_DISKS, mounted_disk, processes_sleeping, unique_sleep
from tests.gated_jobs import (
    WORK,
    GatedJob,
    all_ended,
    publish_requests,
    read_log,
    wait_for_jobs,
    wait_until_running,
)
from tests.polling import wait_until, wait_until_true
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator


def hanging(seconds_asleep: str, before: str = "") -> str:
    """A workflow whose job sleeps that long, in the background and out of sight too."""
    return f'''job "hang" {{
    step run=#"""
        {before or ":"}
        (setsid sleep {seconds_asleep} &)
        {WORK} begun
        echo it runs
        while true; do sleep {seconds_asleep} & wait; done
        """#
}}'''


async def cancel(process: OrchestratorProcess, path: str) -> None:
    """Cancel by the API of that orchestrator."""
    async with httpx2.AsyncClient(base_url=process.url) as client:
        answer = await client.post(f"/api/v1/{path}/cancel")
    assert answer.status_code == 202


TIDY = "trap 'echo tidying up; exit 0' TERM"
DEAF = "trap '' TERM"


@pytest.mark.parametrize("whole", [True, False], ids=["run", "job"])
@pytest.mark.parametrize("before", [TIDY, DEAF], ids=["ends by itself", "deaf"])
async def test_a_job_is_cancelled_by_any_of_several_orchestrators(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore, before: str, whole: bool
) -> None:
    seconds_asleep = unique_sleep()
    gated_job = GatedJob(tmp_path, hanging(seconds_asleep, before))
    with (
        orchestrator(shared_files, STOP_GRACE_SECONDS="20" if before is TIDY else "1") as holder,
        orchestrator(shared_files, CAPACITY_MAP="elsewhere=1") as other,
    ):
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        assert view.worker_id == holder.worker_id
        await wait_until(lambda: len(processes_sleeping(seconds_asleep)) == 2)
        await cancel(other, f"runs/{view.run_id}" if whole else f"jobs/{view.job_id}")
        (after,) = await wait_for_jobs(store, all_ended)
    assert (after.state, after.reason, after.attempt) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED, 1)
    log_text = await read_log(store, view.job_id)
    assert (b"tidying up" in log_text) is (before is TIDY)
    assert log_text.endswith(b"! the job was asked to end\n")
    assert processes_sleeping(seconds_asleep) == set()


@pytest.mark.parametrize("whole", [True, False], ids=["run", "job"])
async def test_a_cancelled_job_of_a_killed_worker_does_not_begin_again(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore, whole: bool
) -> None:
    gated_job = GatedJob(tmp_path)
    with orchestrator(shared_files) as victim:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        victim.kill()
    with orchestrator(shared_files) as successor:
        await cancel(successor, f"runs/{view.run_id}" if whole else f"jobs/{view.job_id}")
        (after,) = await wait_for_jobs(store, all_ended)
    assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert [attempt.reason for attempt in await store.attempts(view.job_id)] == [Reason.AGENT_LOST]
    assert gated_job.begun == 1


async def test_a_worker_that_was_frozen_while_its_job_was_cancelled_ends_the_processes(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    seconds_asleep = unique_sleep()
    gated_job = GatedJob(tmp_path, hanging(seconds_asleep))
    with orchestrator(shared_files) as frozen:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        await wait_until(lambda: len(processes_sleeping(seconds_asleep)) == 2)
        frozen.freeze_between_writes(shared_files)
        await store.cancel_job(view.job_id)
        with orchestrator(shared_files):
            (after,) = await wait_for_jobs(store, all_ended)
        assert after.state is JobState.CANCELLED
        assert len(processes_sleeping(seconds_asleep)) == 2
        frozen.thaw()
        lost = await asyncio.to_thread(frozen.logged, "lease.lost")
        assert lost["job_id"] == view.job_id
        await wait_until(lambda: not processes_sleeping(seconds_asleep))
    assert gated_job.begun == 1


async def test_a_run_that_is_out_of_time_ends_whole_and_what_always_runs_does_not(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    seconds_asleep = unique_sleep()
    workflow = f"""timeout "2s"
{hanging(seconds_asleep)}
job "waits" runs-on="nowhere" {{ step run="true" }}
job "report" if="always" {{
    needs "hang"
    step run="{WORK} begun"
}}
"""
    gated_job = GatedJob(tmp_path, workflow)
    with orchestrator(shared_files):
        await publish_requests(shared_files, gated_job)
        views = await wait_for_jobs(store, all_ended)
    assert {(view.name, view.state, view.reason) for view in views} == {
        (name, JobState.TIMED_OUT, Reason.RUN_TIMEOUT) for name in ("hang", "waits", "report")
    }
    run = await store.run(views[0].run_id)
    assert run is not None
    assert run.state is RunState.TIMED_OUT
    assert processes_sleeping(seconds_asleep) == set()
    assert gated_job.begun == 1


async def test_a_run_can_be_out_of_time_on_a_worker_that_drains(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    seconds_asleep = unique_sleep()
    gated_job = GatedJob(tmp_path, f'timeout "3s"\n{hanging(seconds_asleep)}')
    with orchestrator(shared_files) as process:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        await store.steer_worker(process.worker_id, DrainOrder())
        await asyncio.to_thread(process.logged, "orchestrator.drain_ordered")
        assert await asyncio.to_thread(process.ended) == 0
    (after,) = await store.jobs(limit=9)
    assert (after.state, after.reason) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)
    assert after.job_id == view.job_id
    assert processes_sleeping(seconds_asleep) == set()


async def test_a_job_that_writes_nothing_is_ended_as_the_operator_says(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    seconds_asleep = unique_sleep()
    gated_job = GatedJob(tmp_path, hanging(seconds_asleep))
    with orchestrator(shared_files, NO_OUTPUT_SECONDS="1"):
        await publish_requests(shared_files, gated_job)
        (view,) = await wait_for_jobs(store, all_ended)
    assert (view.state, view.reason) == (JobState.TIMED_OUT, Reason.NO_OUTPUT)
    assert (await read_log(store, view.job_id)).endswith(b"! the job wrote nothing for 1 s\n")
    assert processes_sleeping(seconds_asleep) == set()


async def test_a_job_has_as_many_tries_as_its_author_allows_and_always_a_fresh_workspace(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    workflow = f"""
job "flaky" retries=3 {{
    step run="test ! -e left; touch left; {WORK} begun; test $SOLSTICE_ATTEMPT -ge 3"
}}
job "next" {{ needs "flaky"; step run="{WORK} begun" }}
"""
    gated_job = GatedJob(tmp_path, workflow)
    with orchestrator(shared_files):
        await publish_requests(shared_files, gated_job)
        views = await wait_for_jobs(store, all_ended)
    assert {view.name: view.state for view in views} == {
        "flaky": JobState.SUCCEEDED,
        "next": JobState.SUCCEEDED,
    }
    (flaky,) = [view for view in views if view.name == "flaky"]
    assert [attempt.reason for attempt in await store.attempts(flaky.job_id)] == [
        *(Reason.STEP_FAILED, Reason.STEP_FAILED, Reason.COMPLETED)
    ]
    assert gated_job.begun == 4


async def test_every_job_of_a_matrix_finds_its_values_and_what_needs_it_waits_for_all(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    values = tmp_path / "values"
    workflow = """
job "test" runs-on="{matrix.os}" {
    matrix { os "linux" "illumos"; python "3.11" "3.12" }
    step run="echo {matrix.os} $MATRIX_PYTHON >> VALUES"
}
job "report" { needs "test"; step run="echo all >> VALUES" }
"""
    gated_job = GatedJob(tmp_path, workflow.replace("VALUES", str(values)))
    with orchestrator(shared_files, CAPACITY_MAP="linux=2,illumos=2"):
        await publish_requests(shared_files, gated_job)
        views = await wait_for_jobs(store, all_ended)
    assert {view.state for view in views} == {JobState.SUCCEEDED}
    assert {view.name: view.runs_on for view in views} == {
        **{f"test-{os}-{python}": os for os in ("linux", "illumos") for python in ("3.11", "3.12")},
        "report": "linux",
    }
    *found, last = values.read_text().splitlines()
    assert sorted(found) == ["illumos 3.11", "illumos 3.12", "linux 3.11", "linux 3.12"]
    assert last == "all"


@NEEDS_DISKS
async def test_a_job_that_fills_the_disk_of_the_store_too_has_failed_and_begins_once(tmp_path: Path) -> None:
    seconds_asleep = unique_sleep()
    gated_job = GatedJob(
        tmp_path,
        f'job "fill" {{ step run="{WORK} begun; cat /dev/zero > full || sleep {seconds_asleep}" }}',
    )
    with mounted_disk(tmp_path / "disk", mib=32) as disk:
        shared_files = SharedFiles(directory=disk)
        async with open_store(shared_files.database_url, lease_seconds=60) as store:
            with orchestrator(
                shared_files,
                DISK_RESERVE_MIB="4",
                STOP_GRACE_SECONDS="1",
                LEASE_SECONDS="60",
                RENEW_SECONDS="1",
            ):
                await publish_requests(shared_files, gated_job)
                (view,) = await wait_for_jobs(store, all_ended)
                log_text = await read_log(store, view.job_id)
    assert (view.state, view.reason, view.attempt) == (JobState.FAILED, Reason.STEP_FAILED, 1)
    assert b"the disk is nearly full" in log_text
    assert processes_sleeping(seconds_asleep) == set()
    assert gated_job.begun == 1


async def whole_log(store: JobStore, job_id: str, attempt: int) -> bytes:
    page = await store.log(job_id, attempt=attempt, limit=100_000)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)


async def is_cut(store: JobStore, job_id: str) -> bool:
    return b"of the rest only its end" in await whole_log(store, job_id, 1)


async def test_a_log_over_its_limit_says_what_a_killed_worker_takes_along(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore
) -> None:
    workflow = f'job "talks" {{ step run="echo it runs; seq 1 400000; {WORK} > /dev/null" }}'
    gated_job = GatedJob(tmp_path, workflow)
    with orchestrator(shared_files, MAX_LOG_MIB="1") as victim:
        await publish_requests(shared_files, gated_job)
        view = await wait_until_running(store)
        await wait_until(lambda: (view.job_id, 1) in gated_job.jobs.attempts("waits"))
        # Everything that it stores in time is in the store by now, or on its way.
        await wait_until_true("the log is cut", lambda: is_cut(store, view.job_id))
        victim.kill()
    with orchestrator(shared_files, MAX_LOG_MIB="1"):
        await wait_until(lambda: (view.job_id, 2) in gated_job.jobs.attempts("waits"))
        gated_job.open_gate()
        (after,) = await wait_for_jobs(store, all_ended)
    assert (after.state, after.attempt) == (JobState.SUCCEEDED, 2)
    lost, whole = [await whole_log(store, view.job_id, number) for number in (1, 2)]
    assert lost.endswith(b"once the job has ended: it is lost if this worker is killed before\n")
    assert 700_000 < len(lost) < 800_000
    assert b"bytes are left out here\n" in whole
    assert whole.endswith(b"\n400000\n")


@pytest.mark.parametrize(
    "deed",
    ["kill -KILL $PPID", "kill -KILL 0", "rm -rf $(readlink -f $SOLSTICE_WORKSPACE/..); exit 1", "exit 255"],
    ids=["kills its supervisor", "kills its group", "removes its workspace", "exits with 255"],
)
async def test_a_job_gets_no_further_try_by_force(
    shared_files: SharedFiles, tmp_path: Path, store: JobStore, deed: str
) -> None:
    gated_job = GatedJob(tmp_path, f'job "evil" {{ step run=#"{WORK} begun; {deed}; sleep 30"# }}')
    with orchestrator(shared_files):
        await publish_requests(shared_files, gated_job)
        (view,) = await wait_for_jobs(store, all_ended)
    assert (view.state, view.reason, view.attempt) == (JobState.FAILED, Reason.STEP_FAILED, 1)
    assert gated_job.begun == 1
