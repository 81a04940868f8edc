"""Every store answers readers, wakes them at changes, and keeps what it stored."""

import asyncio

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.waits import WaitingClass
from solstice_orchestrator.store import JobStore
from tests.builders import job, job_request
from tests.stores import (
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    chunk,
    claimed,
    planned,
    running,
)


async def test_pages_of_runs_are_whole_and_newest_first(store: JobStore) -> None:
    ids = [admission.run_id for admission in await store.admit([job_request() for _ in range(7)])]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await store.runs(limit=2, after=cursor)
        seen += [run.run_id for run in page.runs]
        cursor = page.next
    assert cursor is None
    assert seen == ids[::-1]


async def test_runs_are_found_by_repository_and_state(store: JobStore) -> None:
    await planned(store, request=job_request(repo_full_name="lantern/pier"))
    await admitted(store)
    pier = await store.runs(limit=9, repository="lantern/pier")
    assert [run.repo_full_name for run in pier.runs] == ["lantern/pier"]
    waiting = await store.runs(limit=9, state=RunState.WAITING)
    assert [run.run_id for run in waiting.runs] == [pier.runs[0].run_id]
    assert (await store.runs(limit=9, repository="lantern/pier", state=RunState.PLANNING)).runs == []


async def test_jobs_are_found_by_state_newest_first(store: JobStore) -> None:
    for name in ("one", "two", "three"):
        await planned(store, job("true", name=name))
    (claim,) = await claimed(store, limit=1)
    await store.finish(claim.key, SUCCEEDED)
    waiting = await store.jobs(state=JobState.WAITING, limit=9)
    assert [view.name for view in waiting] == ["three", "two"]
    ended = await store.jobs(state=JobState.SUCCEEDED, limit=9)
    assert [view.name for view in ended] == ["one"]
    assert [view.name for view in await store.jobs(limit=2)] == ["three", "two"]


async def test_unfinished_jobs_are_counted_by_state_and_label(store: JobStore) -> None:
    await planned(
        store,
        job("true", name="a"),
        job("true", name="b", runs_on="illumos"),
        job("true", name="c", needs=("a",)),
    )
    await claimed(store)
    assert await store.counts() == {
        (JobState.RUNNING, "linux"): 1,
        (JobState.WAITING, "illumos"): 1,
        (JobState.BLOCKED, "linux"): 1,
    }


async def test_waiting_jobs_are_counted_by_class_with_their_longest_wait(
    store: JobStore, clock: ManualClock
) -> None:
    assert await store.waiting_classes() == {}
    await planned(
        store,
        job("true", name="a", priority=Priority.LOW),
        job("true", name="b", needs=("a",), priority=Priority.LOW),
    )
    clock.forward(60)
    await planned(
        store,
        job("true", name="c", priority=Priority.CRITICAL),
        job("true", name="d", runs_on="illumos", priority=Priority.CRITICAL),
    )
    clock.forward(5)
    assert await store.waiting_classes() == {
        Priority.LOW: WaitingClass(1, 65.0),
        Priority.CRITICAL: WaitingClass(2, 5.0),
    }
    await claimed(store)
    assert await store.waiting_classes() == {Priority.CRITICAL: WaitingClass(1, 5.0)}


async def test_attempts_are_listed_oldest_first(store: JobStore) -> None:
    claim = await running(store)
    await store.finish(claim.key, RELEASED)
    await claimed(store, worker="worker-b")
    views = await store.attempts(claim.key.job_id)
    assert [(view.number, view.worker_id, view.reason) for view in views] == [
        (1, WORKER, Reason.RELEASED),
        (2, "worker-b", Reason.CLAIMED),
    ]


async def test_changes_wake_every_orchestrator(store: JobStore, opened: OpenStore) -> None:
    async with opened() as other, store.changes() as here, other.changes() as there:
        await admitted(store)
        async with asyncio.timeout(10):
            await here.wait()
            await there.wait()


async def test_what_was_stored_is_there_after_a_restart(opened: OpenStore) -> None:
    async with opened() as store:
        claim = await running(store)
        await store.append_log(claim.key, [chunk(1, b"kept")])
    async with opened() as store:
        page = await store.log(claim.key.job_id)
        assert page is not None
        assert page.chunks[0].data == b"kept"
        assert await store.finish(claim.key, SUCCEEDED)
