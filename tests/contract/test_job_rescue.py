"""Every store ends attempts and planning whose leases ran out, and fences their holders."""

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import (
    AttemptKey,
)
from tests.builders import job
from tests.stores import (
    LEASE,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    chunk,
    claimed,
    outbox_statuses,
    planning_task,
    running,
    state_of,
)


async def test_a_dead_planner_is_replaced_and_fenced(store: JobStore, clock: ManualClock) -> None:
    run_id = await admitted(store)
    late = await planning_task(store)
    clock.forward(LEASE + 1)
    await store.rescue()
    clock.forward(LEASE)
    task = await planning_task(store, "worker-b")
    assert (task.run_id, task.attempt) == (run_id, late.attempt + 1)
    assert not await store.planned(late, [job("true")])
    assert not await store.not_planned(late, Reason.INVALID_WORKFLOW, "")
    assert await store.planned(task, [job("true")])
    assert not await store.planned(task, [job("true")])
    assert len(await store.jobs(run_id=run_id, limit=10)) == 1


async def test_a_living_planner_keeps_its_run(store: JobStore, clock: ManualClock) -> None:
    await admitted(store)
    task = await planning_task(store)
    for _ in range(4):
        clock.forward(LEASE / 2)
        await store.renew(WORKER, [])
        await store.rescue()
    assert await store.planned(task, [job("true")])


@pytest.mark.parametrize(
    ("heartbeat", "reason"),
    [(True, Reason.LEASE_EXPIRED), (False, Reason.AGENT_LOST)],
    ids=["worker alive", "worker gone"],
)
async def test_a_lease_that_ran_out_is_ended_for_what_it_was(
    store: JobStore, clock: ManualClock, heartbeat: bool, reason: Reason
) -> None:
    claim = await running(store)
    clock.forward(LEASE - 1)
    if heartbeat:
        await store.renew(WORKER, [])
    assert await store.rescue() == []
    clock.forward(1)
    assert await store.rescue() == [claim.key]
    assert await store.rescue() == []
    assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, reason)
    (view,) = await store.attempts(claim.key.job_id)
    assert (view.reason, view.finished_at) == (reason, clock.now)


async def test_a_late_holder_changes_nothing_and_learns_so(store: JobStore, clock: ManualClock) -> None:
    late = await running(store)
    clock.forward(LEASE)
    await store.rescue()
    clock.forward(LEASE)
    (now,) = await claimed(store, worker="worker-b")
    before = [status.encode() for status in await outbox_statuses(store)]
    assert now.key == AttemptKey(job_id=late.key.job_id, number=2)
    assert not await store.append_log(late.key, [chunk(1)])
    assert not await store.finish(late.key, SUCCEEDED)
    assert (await store.renew(WORKER, [late.key])).lost == {late.key}
    assert [status.encode() for status in await outbox_statuses(store)] == before
    page = await store.log(late.key.job_id)
    assert page is not None
    assert (page.attempt, list(page.chunks)) == (2, [])
    assert await store.finish(now.key, SUCCEEDED)


async def test_an_old_attempt_is_lost_even_when_the_new_one_is_ours_too(
    store: JobStore, clock: ManualClock
) -> None:
    old = await running(store)
    clock.forward(LEASE)
    await store.rescue()
    clock.forward(LEASE)
    (new,) = await claimed(store)
    assert (await store.renew(WORKER, [old.key, new.key])).lost == {old.key}


async def test_a_cancelled_job_of_a_dead_worker_is_cancelled(store: JobStore, clock: ManualClock) -> None:
    claim = await running(store)
    await store.cancel_run(claim.run_id)
    clock.forward(LEASE)
    await store.rescue()
    assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
