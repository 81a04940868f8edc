"""Every store cancels, reruns and prioritises jobs and runs as people ask."""

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import JobCondition, JobSpec, Outcome, Reason
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.views import RunView
from tests.builders import job, job_request
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    running,
    state_of,
)

UNKNOWN_ID = "0190a5b2-0000-7000-8000-000000000000"
HUGE = int("9" * 400)
"""Beyond every float; a field that we do not know may hold it (RFC 8259, section 6, sets no limit)."""

WORKFLOW = (
    job("true", name="lint"),
    job("true", name="build"),
    job("true", name="test", needs=("build", "lint")),
    job("true", name="report", needs=("lint",)),
    job("true", name="clean", needs=("test",), condition=JobCondition.ALWAYS),
)


async def failed_run(store: JobStore, *workflow: JobSpec) -> str:
    """A run whose job `build` failed, with all that follows from it."""
    run_id = await planned(store, *workflow)
    while claims := await claimed(store):
        for claim in claims:
            assert await store.finish(claim.key, FAILED if claim.spec.name == "build" else SUCCEEDED)
    run = await store.run(run_id)
    assert run is not None
    assert run.state.final
    return run_id


async def names_and_needs(store: JobStore, run_id: str) -> dict[str, tuple[str, ...]]:
    return {view.name: view.needs for view in await store.jobs(run_id=run_id, limit=9)}


async def test_what_failed_is_run_again_with_what_needs_it(store: JobStore) -> None:
    old = await failed_run(store, *WORKFLOW)
    states = {view.name: view.state.value for view in await store.jobs(run_id=old, limit=9)}
    assert states == {
        "lint": "succeeded",
        "build": "failed",
        "test": "skipped",
        "report": "succeeded",
        "clean": "succeeded",
    }
    new = await store.rerun_failed(old)
    assert isinstance(new, RunView)
    assert (new.rerun_of, new.state) == (old, RunState.PLANNING)
    assert await store.planned(await planning_task(store), WORKFLOW)
    assert await names_and_needs(store, new.run_id) == {
        "build": (),
        "test": ("build",),
        "clean": ("test",),
    }
    # What has succeeded before counts as met: the run goes on to its end.
    for name in ("build", "test", "clean"):
        (claim,) = await claimed(store)
        assert claim.spec.name == name
        assert await store.finish(claim.key, SUCCEEDED)
    done = await store.run(new.run_id)
    assert done is not None
    assert done.state is RunState.SUCCEEDED


async def test_what_failed_again_is_less_and_all_of_it_is_all(store: JobStore) -> None:
    old = await failed_run(store, *WORKFLOW)
    again = await store.rerun_failed(old)
    assert isinstance(again, RunView)
    assert await store.planned(await planning_task(store), WORKFLOW)
    for outcome in (SUCCEEDED, FAILED, SUCCEEDED):
        (claim,) = await claimed(store)
        await store.finish(claim.key, outcome)
    third = await store.rerun_failed(again.run_id)
    assert isinstance(third, RunView)
    assert await store.planned(await planning_task(store), WORKFLOW)
    assert await names_and_needs(store, third.run_id) == {"test": (), "clean": ("test",)}
    whole = await store.rerun(third.run_id)
    assert whole is not None
    assert await store.planned(await planning_task(store), WORKFLOW)
    assert len(await names_and_needs(store, whole.run_id)) == len(WORKFLOW)


async def test_a_run_that_failed_before_it_had_jobs_is_run_again_as_a_whole(store: JobStore) -> None:
    old = await admitted(store)
    await store.cancel_run(old)
    new = await store.rerun_failed(old)
    assert isinstance(new, RunView)
    assert await store.planned(await planning_task(store), WORKFLOW)
    assert len(await names_and_needs(store, new.run_id)) == len(WORKFLOW)


async def test_there_is_not_always_something_to_run_again(store: JobStore) -> None:
    assert await store.rerun_failed(UNKNOWN_ID) is None
    planning = await admitted(store)
    assert await store.rerun_failed(planning) is RerunRefusal.NOT_ENDED
    await store.planned(await planning_task(store), (job("true", name="a"), job("true", name="b")))
    first, second = await claimed(store)
    await store.finish(first.key, FAILED)
    assert await store.rerun_failed(planning) is RerunRefusal.NOT_ENDED
    await store.finish(second.key, SUCCEEDED)
    good = await planned(store, job("true"))
    (claim,) = await claimed(store)
    await store.finish(claim.key, SUCCEEDED)
    runs = len((await store.runs(limit=99)).runs)
    assert await store.rerun_failed(good) is RerunRefusal.NOTHING_FAILED
    assert len((await store.runs(limit=99)).runs) == runs


async def one_job(store: JobStore, name: str, *, priority: Priority = Priority.DEFAULT) -> str:
    run_id = await planned(store, job("true", name=name, priority=priority))
    (view,) = await store.jobs(run_id=run_id, limit=1)
    return view.job_id


async def started(store: JobStore) -> list[str]:
    return [claim.spec.name for claim in await claimed(store)]


async def test_a_job_of_another_class_starts_in_its_order(store: JobStore) -> None:
    for name in ("one", "two"):
        await one_job(store, name)
    urgent = await one_job(store, "urgent")
    spare = await one_job(store, "spare", priority=Priority.HIGH)
    for job_id, priority in ((urgent, Priority.HIGH), (spare, Priority.LOW)):
        view = await store.prioritise(job_id, priority)
        assert view is not None
        assert (view.priority, view.state) == (priority, JobState.WAITING)
    assert await started(store) == ["urgent", "one", "two", "spare"]


async def test_a_job_in_a_new_class_is_the_newest_there(store: JobStore) -> None:
    ids = [await one_job(store, name) for name in ("one", "two", "three")]
    for priority in (Priority.CRITICAL, Priority.LOW, Priority.DEFAULT):
        await store.prioritise(ids[0], priority)
    await one_job(store, "four")
    assert await started(store) == ["two", "three", "one", "four"]


async def test_one_that_is_blocked_comes_into_its_new_class_later(store: JobStore) -> None:
    run_id = await planned(store, job("true", name="first"), job("true", name="then", needs=("first",)))
    _, then = await store.jobs(run_id=run_id, limit=2)
    await store.prioritise(then.job_id, Priority.HIGH)
    (claim,) = await claimed(store)
    for name in ("one", "two"):
        await one_job(store, name)
    await store.finish(claim.key, SUCCEEDED)
    assert await started(store) == ["then", "one", "two"]


@pytest.mark.parametrize("outcome", [RELEASED, CHECKOUT_ERRORED], ids=["released", "backoff"])
async def test_one_that_runs_waits_in_its_new_class_if_it_has_to_again(
    store: JobStore, clock: ManualClock, outcome: Outcome
) -> None:
    slow = await one_job(store, "slow")
    (claim,) = await claimed(store)
    await store.prioritise(slow, Priority.HIGH)
    assert (await state_of(store, slow))[0] is JobState.RUNNING
    await one_job(store, "other")
    await store.finish(claim.key, outcome)
    clock.forward(600.0)
    await store.rescue()
    assert await started(store) == ["slow", "other"]


async def test_what_has_ended_keeps_its_class(store: JobStore) -> None:
    job_id = await one_job(store, "done")
    (claim,) = await claimed(store)
    await store.finish(claim.key, SUCCEEDED)
    view = await store.prioritise(job_id, Priority.HIGH)
    assert view is not None
    assert (view.priority, view.state) == (Priority.DEFAULT, JobState.SUCCEEDED)
    assert await store.prioritise(UNKNOWN_ID, Priority.HIGH) is None


async def test_saying_the_same_again_costs_a_job_nothing(store: JobStore) -> None:
    first = await one_job(store, "first")
    await one_job(store, "second")
    await store.prioritise(first, Priority.DEFAULT)
    assert await started(store) == ["first", "second"]


async def test_a_waiting_job_is_cancelled_at_once(store: JobStore) -> None:
    run_id = await planned(store)
    (view,) = await store.jobs(run_id=run_id, limit=1)
    after = await store.cancel_job(view.job_id)
    assert after is not None
    assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    run = await store.run(run_id)
    assert run is not None
    assert run.state is RunState.CANCELLED
    assert await claimed(store) == ()


async def test_the_holder_of_a_running_job_gets_the_cancel(store: JobStore) -> None:
    claim = await running(store)
    view = await store.cancel_job(claim.key.job_id)
    assert view is not None
    assert view.state is JobState.RUNNING
    assert (await store.renew(WORKER, [claim.key])).cancelled == {claim.key}
    assert await store.finish(claim.key, CANCELLED)
    assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


@pytest.mark.parametrize("end", [RELEASED, CHECKOUT_ERRORED], ids=["released", "world wrong"])
async def test_a_cancelled_job_does_not_run_again(store: JobStore, end: Outcome) -> None:
    claim = await running(store)
    await store.cancel_job(claim.key.job_id)
    await store.finish(claim.key, end)
    assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


async def test_cancelling_a_run_ends_what_waits_and_asks_what_runs(store: JobStore) -> None:
    await planned(
        store,
        job("true", name="a"),
        job("true", name="b"),
        job("true", name="c", needs=("a",)),
    )
    (claim,) = await claimed(store, limit=1)
    run = await store.cancel_run(claim.run_id)
    assert run is not None
    assert run.state is RunState.RUNNING
    views = await store.jobs(run_id=claim.run_id, limit=9)
    assert [view.state for view in views] == [JobState.RUNNING, JobState.CANCELLED, JobState.CANCELLED]
    await store.finish(claim.key, CANCELLED)
    run = await store.run(claim.run_id)
    assert run is not None
    assert run.state is RunState.CANCELLED


async def test_a_run_that_is_planned_is_cancelled_and_its_planner_fenced(store: JobStore) -> None:
    run_id = await admitted(store)
    task = await planning_task(store)
    run = await store.cancel_run(run_id)
    assert run is not None
    assert run.state is RunState.CANCELLED
    assert not await store.planned(task, [job("true")])


async def test_what_has_ended_stays_as_it_is(store: JobStore) -> None:
    claim = await running(store)
    await store.finish(claim.key, FAILED)
    before = len(await outbox_statuses(store))
    view, run = await store.cancel_job(claim.key.job_id), await store.cancel_run(claim.run_id)
    assert view is not None
    assert run is not None
    assert (view.state, run.state) == (JobState.FAILED, RunState.FAILED)
    assert len(await outbox_statuses(store)) == before


async def test_with_any_unknown_fields_a_run_lives_and_is_rerun(store: JobStore) -> None:
    request = job_request(count=2**70 + 1, more={"huge": HUGE})
    await planned(store, request=request)
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, SUCCEEDED)
    assert (await store.runs(limit=1)).runs[0].state is RunState.SUCCEEDED
    assert await store.rerun(claim.run_id) is not None
    again = (await planning_task(store)).request
    assert again.model_extra == request.model_extra


async def test_a_rerun_is_a_new_run_of_the_same_request(store: JobStore) -> None:
    request = job_request(idempotency_key="push 1", later="x")
    run_id = await admitted(store, request)
    again, once_more = await store.rerun(run_id), await store.rerun(run_id)
    assert again is not None
    assert once_more is not None
    assert len({run_id, again.run_id, once_more.run_id}) == 3
    assert (again.rerun_of, again.state, again.commit_sha) == (
        run_id,
        RunState.PLANNING,
        request.commit_sha,
    )
    tasks = await store.claim_planning(WORKER, 9)
    copy = tasks[1].request
    assert copy.request_id == again.request_id != request.request_id
    assert (copy.idempotency_key, copy.model_extra) == (None, {"later": "x"})


async def test_what_is_not_there_is_none(store: JobStore) -> None:
    assert await store.cancel_job("x") is None
    assert await store.cancel_run("x") is None
    assert await store.rerun("x") is None
    assert await store.run("x") is None
    assert await store.job("x") is None
    assert await store.run_of_request("x") is None
