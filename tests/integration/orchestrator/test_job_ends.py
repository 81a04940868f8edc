"""Jobs on real orchestrators end when they must: cancelled, out of time, silent, or tried as often as they may be."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.workers import Drain
from solstice_orchestrator.store import JobStore, open_store
from tests.lab import DISKS, mounted_disk, naps, sleeping
from tests.patience import becomes, becomes_true
from tests.servers.orchestrator import OrchestratorProcess, Place, orchestrator
from tests.yard import Yard, ask_for, ended, job_runs, jobs_become, log_of

BEGIN = "echo attempt >> {record}\n        echo it runs"


def hanging(nap: str, before: str = "") -> str:
    """A workflow whose job sleeps that long, in the background and out of sight too."""
    return f'''job "hang" {{
    step run=#"""
        {before or ":"}
        (setsid sleep {nap} &)
        {BEGIN}
        while true; do sleep {nap} & wait; done
        """#
}}'''


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(directory=tmp_path)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[JobStore]:
    async with open_store(place.database_url, lease_seconds=3) as opened:
        yield opened


async def cancel(process: OrchestratorProcess, path: str) -> None:
    """By the API of that orchestrator."""
    async with httpx2.AsyncClient(base_url=process.url) as client:
        answer = await client.post(f"/api/v1/{path}/cancel")
    assert answer.status_code == 202


TIDY = "trap 'echo tidying up; exit 0' TERM"
DEAF = "trap '' TERM"


@pytest.mark.parametrize("whole", [True, False], ids=["run", "job"])
@pytest.mark.parametrize("before", [TIDY, DEAF], ids=["ends by itself", "deaf"])
async def test_a_job_is_cancelled_by_whichever_orchestrator_is_asked(
    place: Place, tmp_path: Path, store: JobStore, before: str, whole: bool
) -> None:
    nap = naps()
    yard = Yard(tmp_path, hanging(nap, before))
    with (
        orchestrator(place, STOP_GRACE_SECONDS="20" if before is TIDY else "1") as holder,
        orchestrator(place, CAPACITY_MAP="elsewhere=1") as other,
    ):
        await ask_for(place, yard)
        view = await job_runs(store)
        assert view.worker_id == holder.worker_id
        await becomes(lambda: len(sleeping(nap)) == 2)
        await cancel(other, f"runs/{view.run_id}" if whole else f"jobs/{view.job_id}")
        (after,) = await jobs_become(store, ended)
    assert (after.state, after.reason, after.attempt) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED, 1)
    said = await log_of(store, view.job_id)
    assert (b"tidying up" in said) is (before is TIDY)
    assert said.endswith(b"! the job was asked to end\n")
    assert sleeping(nap) == set()


@pytest.mark.parametrize("whole", [True, False], ids=["run", "job"])
async def test_a_cancelled_job_of_a_killed_worker_does_not_begin_again(
    place: Place, tmp_path: Path, store: JobStore, whole: bool
) -> None:
    yard = Yard(tmp_path)
    with orchestrator(place) as victim:
        await ask_for(place, yard)
        view = await job_runs(store)
        victim.kill()
    with orchestrator(place) as heir:
        await cancel(heir, f"runs/{view.run_id}" if whole else f"jobs/{view.job_id}")
        (after,) = await jobs_become(store, ended)
    assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert [attempt.reason for attempt in await store.attempts(view.job_id)] == [Reason.AGENT_LOST]
    assert yard.begun == 1


async def test_a_worker_that_was_frozen_while_its_job_was_cancelled_ends_the_processes(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    nap = naps()
    yard = Yard(tmp_path, hanging(nap))
    with orchestrator(place) as frozen:
        await ask_for(place, yard)
        view = await job_runs(store)
        await becomes(lambda: len(sleeping(nap)) == 2)
        frozen.freeze_between_writes(place)
        await store.cancel_job(view.job_id)
        with orchestrator(place):
            (after,) = await jobs_become(store, ended)
        assert after.state is JobState.CANCELLED
        assert len(sleeping(nap)) == 2
        frozen.thaw()
        lost = await asyncio.to_thread(frozen.logged, "lease.lost")
        assert lost["job_id"] == view.job_id
        await becomes(lambda: not sleeping(nap))
    assert yard.begun == 1


async def test_a_run_that_is_out_of_time_ends_whole_and_what_always_runs_does_not(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    nap = naps()
    workflow = f"""timeout "2s"
{hanging(nap)}
job "waits" runs-on="nowhere" {{ step run="true" }}
job "report" if="always" {{
    needs "hang"
    step run="echo never >> {{record}}"
}}
"""
    yard = Yard(tmp_path, workflow)
    with orchestrator(place):
        await ask_for(place, yard)
        views = await jobs_become(store, ended)
    assert {(view.name, view.state, view.reason) for view in views} == {
        (name, JobState.TIMED_OUT, Reason.RUN_TIMEOUT) for name in ("hang", "waits", "report")
    }
    run = await store.run(views[0].run_id)
    assert run is not None
    assert run.state is RunState.TIMED_OUT
    assert sleeping(nap) == set()
    assert yard.begun == 1


async def test_a_run_can_be_out_of_time_on_a_worker_that_drains(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    nap = naps()
    yard = Yard(tmp_path, f'timeout "3s"\n{hanging(nap)}')
    with orchestrator(place) as process:
        await ask_for(place, yard)
        view = await job_runs(store)
        await store.steer_worker(process.worker_id, Drain())
        await asyncio.to_thread(process.logged, "orchestrator.drain_ordered")
        assert await asyncio.to_thread(process.ended) == 0
    (after,) = await store.jobs(limit=9)
    assert (after.state, after.reason) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)
    assert after.job_id == view.job_id
    assert sleeping(nap) == set()


async def test_a_job_that_writes_nothing_is_ended_as_the_operator_says(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    nap = naps()
    yard = Yard(tmp_path, hanging(nap))
    with orchestrator(place, NO_OUTPUT_SECONDS="1"):
        await ask_for(place, yard)
        (view,) = await jobs_become(store, ended)
    assert (view.state, view.reason) == (JobState.TIMED_OUT, Reason.NO_OUTPUT)
    assert (await log_of(store, view.job_id)).endswith(b"! the job wrote nothing for 1 s\n")
    assert sleeping(nap) == set()


async def test_a_job_is_tried_as_often_as_its_author_said_and_always_in_a_fresh_workspace(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    workflow = """
job "flaky" retries=3 {
    step run="test ! -e left; touch left; echo attempt >> {record}; test $(wc -l < {record}) -ge 3"
}
job "next" { needs "flaky"; step run="echo attempt >> {record}" }
"""
    yard = Yard(tmp_path, workflow)
    with orchestrator(place):
        await ask_for(place, yard)
        views = await jobs_become(store, ended)
    assert {view.name: view.state for view in views} == {
        "flaky": JobState.SUCCEEDED,
        "next": JobState.SUCCEEDED,
    }
    (flaky,) = [view for view in views if view.name == "flaky"]
    assert [attempt.reason for attempt in await store.attempts(flaky.job_id)] == [
        *(Reason.STEP_FAILED, Reason.STEP_FAILED, Reason.COMPLETED)
    ]
    assert yard.begun == 4


async def test_every_job_of_a_matrix_finds_its_values_and_what_needs_it_waits_for_all(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    workflow = """
job "test" runs-on="{matrix.os}" {
    matrix { os "linux" "illumos"; python "3.11" "3.12" }
    step run="echo {matrix.os} $MATRIX_PYTHON >> {record}"
}
job "report" { needs "test"; step run="echo all >> {record}" }
"""
    yard = Yard(tmp_path, workflow)
    with orchestrator(place, CAPACITY_MAP="linux=2,illumos=2"):
        await ask_for(place, yard)
        views = await jobs_become(store, ended)
    assert {view.state for view in views} == {JobState.SUCCEEDED}
    assert {view.name: view.runs_on for view in views} == {
        **{f"test-{os}-{python}": os for os in ("linux", "illumos") for python in ("3.11", "3.12")},
        "report": "linux",
    }
    *found, last = yard.record.read_text().splitlines()
    assert sorted(found) == ["illumos 3.11", "illumos 3.12", "linux 3.11", "linux 3.12"]
    assert last == "all"


@DISKS
async def test_a_job_that_fills_the_disk_of_the_store_too_has_failed_and_begins_once(tmp_path: Path) -> None:
    nap = naps()
    yard = Yard(
        tmp_path,
        f'job "fill" {{ step run="echo attempt >> {{record}}; cat /dev/zero > full || sleep {nap}" }}',
    )
    with mounted_disk(tmp_path / "disk", mib=32) as disk:
        place = Place(directory=disk)
        async with open_store(place.database_url, lease_seconds=60) as store:
            with orchestrator(
                place, DISK_RESERVE_MIB="4", STOP_GRACE_SECONDS="1", LEASE_SECONDS="60", RENEW_SECONDS="1"
            ):
                await ask_for(place, yard)
                (view,) = await jobs_become(store, ended)
                said = await log_of(store, view.job_id)
    assert (view.state, view.reason, view.attempt) == (JobState.FAILED, Reason.STEP_FAILED, 1)
    assert b"the disk is nearly full" in said
    assert sleeping(nap) == set()
    assert yard.begun == 1


async def whole_log(store: JobStore, job_id: str, attempt: int) -> bytes:
    page = await store.log(job_id, attempt=attempt, limit=100_000)
    return b"" if page is None else b"".join(chunk.data for chunk in page.chunks)


async def is_cut(store: JobStore, job_id: str) -> bool:
    return b"of what follows" in await whole_log(store, job_id, 1)


async def test_a_log_over_its_limit_says_what_a_killed_worker_takes_along(
    place: Place, tmp_path: Path, store: JobStore
) -> None:
    workflow = """
job "talks" {
    step run="echo it runs; echo attempt >> {record}; seq 1 400000; touch {gate}-$SOLSTICE_ATTEMPT; until test -e {gate}; do sleep 0.05; done"
}
"""
    yard = Yard(tmp_path, workflow)
    first, second = (yard.gate.with_name(f"gate-{number}") for number in (1, 2))
    with orchestrator(place, MAX_LOG_MIB="1") as victim:
        await ask_for(place, yard)
        view = await job_runs(store)
        await becomes(first.exists)
        # What it stores in time is in the store by now, or on its way.
        await becomes_true("the log is cut", lambda: is_cut(store, view.job_id))
        victim.kill()
    with orchestrator(place, MAX_LOG_MIB="1"):
        await becomes(second.exists)
        yard.open_gate()
        (after,) = await jobs_become(store, ended)
    assert (after.state, after.attempt) == (JobState.SUCCEEDED, 2)
    lost, whole = [await whole_log(store, view.job_id, number) for number in (1, 2)]
    assert lost.endswith(b"stored when the job ends: it is lost if this worker is killed before\n")
    assert 700_000 < len(lost) < 800_000
    assert b"bytes are left out here\n" in whole
    assert whole.endswith(b"\n400000\n")


@pytest.mark.parametrize(
    "deed",
    ["kill -KILL $PPID", "kill -KILL 0", "rm -rf $(readlink -f $SOLSTICE_WORKSPACE/..); exit 1", "exit 255"],
    ids=["kills its supervisor", "kills its group", "removes its workspace", "exits with 255"],
)
async def test_a_job_gets_no_further_try_by_force(
    place: Place, tmp_path: Path, store: JobStore, deed: str
) -> None:
    yard = Yard(tmp_path, f'job "evil" {{ step run=#"echo attempt >> {{record}}; {deed}; sleep 30"# }}')
    with orchestrator(place):
        await ask_for(place, yard)
        (view,) = await jobs_become(store, ended)
    assert (view.state, view.reason, view.attempt) == (JobState.FAILED, Reason.STEP_FAILED, 1)
    assert yard.begun == 1
