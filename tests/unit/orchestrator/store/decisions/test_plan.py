"""The result of planning a run, and the changes when it fails."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import (
    MAX_ATTEMPTS,
    Concurrency,
    JobCondition,
    JobSpec,
    Reason,
    RunSpec,
)
from solstice_orchestrator.domain.reruns import RerunScope
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.decisions.plan import begin, not_planned, planned
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import PlanningTask
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from tests.builders import job, job_request, moment, run_of_one_job
from tests.stores import retries_after

NOW = 1000.0
RUN_ID = "a1"
DEPLOY = Concurrency(group="deploy")


def unit_of(request: dict[str, Any] | None = None, **changes: Any) -> tuple[UnitOfWork, PlanningTask]:
    """A run that its first attempt plans, and that attempt."""
    request_message = job_request(**(request or {}))
    run = replace(
        run_of_one_job(1).run,
        **{
            "run_id": RUN_ID,
            "state": RunState.PLANNING,
            "started_at": None,
            "plan_attempt": 1,
            "plan_worker": "w",
            "plan_since": 900.0,
            "request": request_message.encode(),
            **changes,
        },
    )
    unit = UnitOfWork(moment(NOW, retries=retries_after(4.0)), [run])
    return unit, PlanningTask(run_id=RUN_ID, attempt=1, request=request_message)


def states_after(
    *specs: JobSpec, run_spec: RunSpec | None = None, request: dict[str, Any] | None = None
) -> list[tuple[JobState, Reason]]:
    unit, task = unit_of(request)
    assert planned(unit, task, specs, run_spec or RunSpec()) is True
    return [(each.state, each.reason) for each in unit.jobs_of(RUN_ID)]


def test_a_planned_run_has_the_jobs_of_its_workflow() -> None:
    unit, task = unit_of()
    lint = job("ruff", name="lint", retries=2, condition=JobCondition.ALWAYS, priority=Priority.HIGH)
    test = job("pytest", needs=("lint",), runs_on="illumos")
    assert planned(unit, task, [lint, test], RunSpec(timeout_seconds=60.0)) is True
    first, second = unit.jobs_of(RUN_ID)
    assert (first.position, first.name, first.runs_on, first.needs) == (0, "lint", "linux", "[]")
    assert (first.retries, first.condition, first.priority) == (2, "always", rank(Priority.HIGH))
    assert (first.repository, first.owner, first.ref) == ("river/otter", "river", "refs/heads/main")
    assert (first.created_at, first.waiting_since) == (NOW, NOW)
    assert (second.position, second.name, second.runs_on, second.needs) == (1, "test", "illumos", '["lint"]')
    assert first.job_id < second.job_id
    run = unit.runs[RUN_ID]
    assert (run.state, run.job_count, run.timeout_at) == (RunState.WAITING, 2, NOW + 60)
    assert (run.plan_worker, run.group_key, run.concurrency) == (None, None, None)
    changes = unit.changes()
    assert [decode_spec(changes.specs[each.job_id]) for each in (first, second)] == [lint, test]
    assert changes.statuses[0].description == "2 jobs: 1 blocked, 1 waiting"
    assert [ref_run.run_id for ref_run in changes.ref_runs] == [RUN_ID]


def test_jobs_wait_for_a_slot_their_needs_or_their_group() -> None:
    assert states_after(
        job("x", name="a"), job("x", name="b", needs=("a",)), job("x", name="c", concurrency=DEPLOY)
    ) == [
        (JobState.WAITING, Reason.PLANNED),
        (JobState.BLOCKED, Reason.PLANNED),
        (JobState.BLOCKED, Reason.CONCURRENCY_GROUP),
    ]
    assert states_after(job("x", name="a"), run_spec=RunSpec(concurrency=DEPLOY)) == [
        (JobState.BLOCKED, Reason.CONCURRENCY_GROUP)
    ]


def test_a_run_asks_for_its_group_and_a_job_for_its_own() -> None:
    unit, task = unit_of()
    planned(unit, task, [job("x", concurrency=DEPLOY)], RunSpec(concurrency=DEPLOY))
    run, (made,) = unit.runs[RUN_ID], unit.jobs_of(RUN_ID)
    assert run.concurrency is not None
    assert json.loads(run.concurrency) == {"group": "deploy", "mode": "queue"}
    assert run.group_key is not None
    assert made.group_key is not None
    assert run.group_key != made.group_key
    assert unit.changes().groups == [run.group_key]


def test_a_run_that_waits_for_approval_keeps_no_other_from_its_group() -> None:
    request = {"trusted": False, "needs_approval": True}
    unit, task = unit_of(request)
    planned(unit, task, [job("x")], RunSpec(concurrency=DEPLOY))
    assert unit.runs[RUN_ID].group_key is None
    assert unit.runs[RUN_ID].concurrency is not None
    assert [(each.state, each.reason) for each in unit.jobs_of(RUN_ID)] == [
        (JobState.APPROVAL, Reason.PLANNED)
    ]
    assert not unit.changes().groups


def test_a_rerun_has_the_chosen_jobs_alone_and_takes_no_place_on_its_branch() -> None:
    unit, task = unit_of()
    specs = [job("x", name="a"), job("x", name="b", needs=("a",))]
    planned(unit, task, specs, RunSpec(), rerun_scope=RerunScope(requested=True, only=frozenset({"b"})))
    assert [each.name for each in unit.jobs_of(RUN_ID)] == ["b"]
    (ref_run,) = unit.changes().ref_runs
    assert (ref_run.rerun, ref_run.lead) == (True, 0)


@pytest.mark.parametrize(
    "specs",
    [[job("x"), job("y")], [job("x", needs=("lint",))]],
    ids=["two of one name", "a need that is not there"],
)
def test_jobs_that_cannot_be_distinguished_or_need_others_are_a_mistake(specs: list[JobSpec]) -> None:
    unit, task = unit_of()
    with pytest.raises(ValueError, match=f"jobs of run {RUN_ID}: names are not unique"):
        planned(unit, task, specs, RunSpec())


@pytest.mark.parametrize(
    "changes",
    [{"plan_attempt": 2}, {"plan_worker": None}, {"state": RunState.CANCELLED}, {"run_id": "b2"}],
    ids=["a later attempt", "given back", "ended", "removed"],
)
def test_a_planner_that_was_overtaken_changes_nothing(changes: dict[str, Any]) -> None:
    unit, task = unit_of(**changes)
    assert planned(unit, task, [job("x")], RunSpec()) is False
    assert not_planned(unit, task, Reason.INVALID_WORKFLOW, "no jobs") is False
    assert not unit.changes().runs


def test_a_delayed_run_is_planned_when_its_time_has_come() -> None:
    runs = [
        replace(run_of_one_job(1).run, run_id=run_id, state=state, plan_at=plan_at)
        for run_id, state, plan_at in (
            ("due", RunState.DELAYED, NOW),
            ("later", RunState.DELAYED, NOW + 1),
            ("planning", RunState.PLANNING, 0.0),
        )
    ]
    unit = UnitOfWork(moment(NOW), runs)
    begin(unit)
    assert [(run.run_id, run.state) for run in unit.changes().runs] == [("due", RunState.PLANNING)]


@pytest.mark.parametrize(
    ("reason", "detail"),
    [(Reason.RELEASED, ""), (Reason.MACHINE_FAILED, "no space")],
    ids=["released", "the machine's fault"],
)
def test_a_run_that_was_released_can_be_planned_at_once_by_any_worker(reason: Reason, detail: str) -> None:
    unit, task = unit_of()
    assert not_planned(unit, task, reason, "no space") is True
    run = unit.runs[RUN_ID]
    assert (run.state, run.plan_worker, run.plan_since) == (RunState.PLANNING, None, None)
    assert (run.plan_at, run.plan_failures, run.detail) == (0.0, 0, detail)


def test_a_run_whose_host_is_away_waits_without_counting() -> None:
    unit, task = unit_of()
    assert not_planned(unit, task, Reason.HOST_AWAY, "refused") is True
    run = unit.runs[RUN_ID]
    assert (run.state, run.plan_worker, run.plan_since) == (RunState.PLANNING, None, None)
    assert NOW + 2.0 <= run.plan_at <= NOW + 4.0
    assert (run.plan_failures, run.detail) == (0, "refused")


def test_a_failure_is_tried_again_later_until_the_budget_is_spent() -> None:
    unit, task = unit_of()
    assert not_planned(unit, task, Reason.CHECKOUT_FAILED, "no route") is True
    run = unit.runs[RUN_ID]
    assert (run.state, run.plan_worker, run.plan_since) == (RunState.PLANNING, None, None)
    assert (run.plan_failures, run.detail) == (1, "no route")
    assert NOW < run.plan_at <= NOW + 4.0
    unit, task = unit_of(plan_failures=MAX_ATTEMPTS - 1)
    not_planned(unit, task, Reason.CHECKOUT_FAILED, "")
    run = unit.runs[RUN_ID]
    assert (run.state, run.plan_failures) == (RunState.ERRORED, MAX_ATTEMPTS)
    assert run.detail == f"its workflow could not be read, {MAX_ATTEMPTS} times: checkout_failed"
    (dead_letter,) = unit.changes().dead_letters
    assert json.loads(dead_letter.headers)["x-solstice-reason"] == "checkout_failed"


def test_a_workflow_that_is_wrong_ends_its_run() -> None:
    unit, task = unit_of()
    assert not_planned(unit, task, Reason.INVALID_WORKFLOW, "line 1\x00") is True
    run = unit.runs[RUN_ID]
    assert (run.state, run.finished_at) == (RunState.ERRORED, NOW)
    assert run.detail.startswith("line 1")
    assert "\x00" not in run.detail
    changes = unit.changes()
    assert (changes.statuses[0].reason, list(changes.dead_letters)) == (Reason.INVALID_WORKFLOW, [])


def test_the_spec_of_a_job_is_stored_whole() -> None:
    unit, task = unit_of()
    spec = job("make", secrets=("KEY",), matrix={"os": "linux"})
    planned(unit, task, [spec], RunSpec())
    assert list(unit.changes().specs.values()) == [encode_spec(spec)]
