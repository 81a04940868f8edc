"""Jobs and runs that their workflow file leaves out, in every job store."""

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Concurrency, JobCondition, Outcome, Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import OutboxKind
from solstice_orchestrator.workflow.conditions.terms import written_later
from tests.builders import job, job_request
from tests.stores import (
    FAILED,
    SUCCEEDED,
    ManualClock,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
)

UNMET = "branch == 'main'"
LEFT_OUT = job("true", name="deploy", unmet=UNMET)
AFTER = job("true", name="smoke", needs=("deploy",))
REPORT = job("true", name="report", needs=("deploy",), condition=JobCondition.ALWAYS)
BUILD = job("true", name="build")


async def states(store: JobStore, run_id: str) -> dict[str, tuple[JobState, Reason]]:
    return {view.name: (view.state, view.reason) for view in await store.jobs(run_id=run_id, limit=100)}


async def state_of_run(store: JobStore, run_id: str) -> RunState:
    run = await store.run(run_id)
    assert run is not None
    return run.state


async def test_a_job_that_is_left_out_is_skipped_with_those_that_need_it(store: JobStore) -> None:
    run_id = await planned(store, LEFT_OUT, AFTER, REPORT, BUILD)
    assert await states(store, run_id) == {
        "deploy": (JobState.SKIPPED, Reason.CONDITION_UNMET),
        "smoke": (JobState.SKIPPED, Reason.NEEDS_FAILED),
        "report": (JobState.WAITING, Reason.NEEDS_MET),
        "build": (JobState.WAITING, Reason.PLANNED),
    }
    left_out = (await store.jobs(run_id=run_id, limit=100))[0]
    assert (left_out.detail, left_out.finished_at, left_out.attempt) == (UNMET, left_out.created_at, 0)


async def test_a_run_succeeds_or_fails_by_the_jobs_that_are_part_of_it(store: JobStore) -> None:
    for outcome, expected in ((SUCCEEDED, RunState.SUCCEEDED), (FAILED, RunState.FAILED)):
        run_id = await planned(store, LEFT_OUT, BUILD)
        (claim,) = await claimed(store)
        assert await store.finish(claim.key, outcome)
        assert await state_of_run(store, run_id) is expected


async def test_a_run_without_a_job_that_is_part_of_it_ends_at_once(
    store: JobStore, clock: ManualClock
) -> None:
    run_id = await planned(store, LEFT_OUT, AFTER)
    run = await store.run(run_id)
    assert run is not None
    assert (run.state, run.finished_at) == (RunState.SKIPPED, clock.now)
    assert not await claimed(store)
    last = {status.context: status for status in await outbox_statuses(store)}
    assert {context: status.state for context, status in last.items()} == {
        "solstice": "skipped",
        "solstice/deploy": "skipped",
        "solstice/smoke": "skipped",
    }
    assert last["solstice/deploy"].description == f"Not part of this run: {UNMET}"


async def test_what_is_left_out_needs_no_approval(store: JobStore) -> None:
    request = job_request(change_number=7, trusted=False, needs_approval=True)
    run_id = await planned(store, LEFT_OUT, AFTER, BUILD, request=request)
    assert {name: state for name, (state, _) in (await states(store, run_id)).items()} == {
        "deploy": JobState.SKIPPED,
        "smoke": JobState.APPROVAL,
        "build": JobState.APPROVAL,
    }
    await store.approve_run(run_id)
    assert {name: state for name, (state, _) in (await states(store, run_id)).items()} == {
        "deploy": JobState.SKIPPED,
        "smoke": JobState.SKIPPED,
        "build": JobState.WAITING,
    }


ON_FAILURE = written_later(("equal", ("result", "test"), "failed"), "result('test') == 'failed'")


@pytest.mark.parametrize(
    ("outcome", "is_met"), [(FAILED, True), (SUCCEEDED, False)], ids=["failed", "succeeded"]
)
async def test_a_job_is_decided_by_the_results_of_its_needs(
    store: JobStore, *, outcome: Outcome, is_met: bool
) -> None:
    test, site = job("true", name="test"), Concurrency(group="site")
    report = job(
        "true",
        name="report",
        needs=("test",),
        condition=JobCondition.ALWAYS,
        later=ON_FAILURE,
        concurrency=site,
    )
    run_id = await planned(store, test, report, job("true", name="last", needs=("report",)))
    (claim,) = await claimed(store)
    assert (await states(store, run_id))["report"] == (JobState.BLOCKED, Reason.PLANNED)
    assert await store.finish(claim.key, outcome)
    found = await states(store, run_id)
    if is_met:
        assert (found["report"][0], found["last"][0]) == (JobState.WAITING, JobState.BLOCKED)
    else:
        assert (found["report"], found["last"][0]) == (
            (JobState.SKIPPED, Reason.CONDITION_UNMET),
            JobState.SKIPPED,
        )
        assert (await store.jobs(run_id=run_id, limit=9))[1].detail == "result('test') == 'failed'"
        assert await state_of_run(store, run_id) is RunState.SUCCEEDED


async def test_an_event_that_is_not_built_ends_the_run_without_jobs_or_a_dead_letter(store: JobStore) -> None:
    run_id = await admitted(store)
    task = await planning_task(store)
    assert await store.not_planned(task, Reason.EVENT_NOT_BUILT, "'on' does not name tag v1")
    run = await store.run(run_id)
    assert run is not None
    assert (run.state, run.detail) == (RunState.SKIPPED, "'on' does not name tag v1")
    assert not await store.jobs(run_id=run_id, limit=10)
    assert {row.kind for row in await store.outbox(100)} == {OutboxKind.STATUS}
    last = (await outbox_statuses(store))[-1]
    assert (last.state, last.reason) == ("skipped", "event_not_built")
    assert last.description == "Skipped: 'on' does not name tag v1"
    assert not await store.not_planned(task, Reason.EVENT_NOT_BUILT, "again")


async def test_groups_and_places_are_not_taken_by_what_is_left_out(store: JobStore) -> None:
    site = Concurrency(group="site")
    left_out = job("true", name="deploy", unmet=UNMET, concurrency=site)
    run_id = await planned(store, left_out, job("true", name="other", concurrency=site))
    assert (await states(store, run_id))["other"][0] is JobState.WAITING
