"""Every store gives a run to one planner at a time, then stores the outcome."""

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import (
    OutboxKind,
)
from tests.builders import job, job_request
from tests.stores import (
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    outbox_statuses,
    planned,
    planning_task,
    retries_after,
)


async def test_oldest_first_and_each_to_one_worker(store: JobStore, opened: OpenStore) -> None:
    ids = [await admitted(store) for _ in range(5)]
    async with opened() as other:
        first = await store.claim_planning(WORKER, 2)
        rest = await other.claim_planning("worker-b", 10)
    assert [task.run_id for task in (*first, *rest)] == ids
    assert await store.claim_planning(WORKER, 10) == []


async def test_a_claim_whose_answer_was_lost_can_be_claimed_again(store: JobStore, opened: OpenStore) -> None:
    """The answer to a claim is lost when the connection breaks as it is committed."""
    known, lost, of_another = [await admitted(store) for _ in range(3)]
    (renewed_task,) = await store.claim_planning(WORKER, 1)
    (silent_task,) = await store.claim_planning(WORKER, 1)
    async with opened() as other:
        (other_task,) = await other.claim_planning("worker-b", 1)
        assert (renewed_task.run_id, silent_task.run_id, other_task.run_id) == (known, lost, of_another)
        await store.take_back_planning(WORKER, {renewed_task.run_id})
        (again,) = await other.claim_planning("worker-b", 10)
    assert again.run_id == lost
    assert not await store.planned(silent_task, ())
    assert await store.planned(renewed_task, ())
    assert await store.planned(other_task, ())


async def test_jobs_without_needs_wait_and_the_others_are_blocked(store: JobStore) -> None:
    run_id = await planned(store, job("true", name="build"), job("true", name="ship", needs=("build",)))
    views = await store.jobs(run_id=run_id, limit=10)
    assert [(view.name, view.state, view.needs) for view in views] == [
        ("build", JobState.WAITING, ()),
        ("ship", JobState.BLOCKED, ("build",)),
    ]
    run = await store.run(run_id)
    assert run is not None
    assert run.state is RunState.WAITING


async def test_a_run_without_jobs_is_skipped(store: JobStore) -> None:
    run_id = await admitted(store)
    assert await store.planned(await planning_task(store), ())
    run = await store.run(run_id)
    assert run is not None
    assert run.state is RunState.SKIPPED


@pytest.mark.parametrize("reason", [Reason.INVALID_WORKFLOW, Reason.COMMIT_NOT_FOUND, Reason.NOT_TRUSTED])
async def test_a_request_that_cannot_become_jobs_ends_its_run(store: JobStore, reason: Reason) -> None:
    run_id = await admitted(store)
    assert await store.not_planned(await planning_task(store), reason, "line 3: no such thing")
    run = await store.run(run_id)
    assert run is not None
    assert (run.state, run.detail) == (RunState.ERRORED, "line 3: no such thing")
    last = (await outbox_statuses(store))[-1]
    assert (last.state, last.reason) == ("errored", reason.value)
    assert [row.kind for row in await store.outbox(10)] == [OutboxKind.STATUS] * 2


async def test_a_wrong_world_is_tried_again_and_then_becomes_a_dead_letter(
    store: JobStore, clock: ManualClock
) -> None:
    request = job_request()
    run_id = await admitted(store, request)
    for _ in range(MAX_ATTEMPTS):
        clock.forward(1000)
        assert await store.not_planned(await planning_task(store), Reason.CHECKOUT_FAILED, "no route to host")
    clock.forward(1000)
    assert await store.claim_planning(WORKER, 1) == []
    run = await store.run(run_id)
    assert run is not None
    assert run.state is RunState.ERRORED
    *_, dead_letter = await store.outbox(100)
    assert (dead_letter.kind, dead_letter.request_id) == (OutboxKind.DEAD_LETTER, request.request_id)
    assert dead_letter.body == request.encode()
    assert dead_letter.headers["x-solstice-reason"] == "checkout_failed"
    assert "no route to host" in dead_letter.headers["x-solstice-detail"]


async def test_backoff_keeps_a_run_from_being_planned_too_soon(store_url: str, clock: ManualClock) -> None:
    async with open_store(store_url, clock=clock, retries=retries_after(1e6)) as store:
        await admitted(store)
        await store.not_planned(await planning_task(store), Reason.CHECKOUT_FAILED, "")
        assert await store.claim_planning(WORKER, 1) == []
        clock.forward(300)
        assert len(await store.claim_planning(WORKER, 1)) == 1


async def test_a_sick_machine_spends_no_try_of_a_run(store: JobStore) -> None:
    await admitted(store)
    for _ in range(MAX_ATTEMPTS + 2):
        assert await store.not_planned(await planning_task(store), Reason.MACHINE_FAILED, "disk full")
    assert await store.planned(await planning_task(store), [job("true")])


async def test_a_released_plan_is_there_again_at_once_and_does_not_count(store: JobStore) -> None:
    await admitted(store)
    for _ in range(MAX_ATTEMPTS + 2):
        assert await store.not_planned(await planning_task(store), Reason.RELEASED, "")
    assert len(await store.claim_planning(WORKER, 1)) == 1
