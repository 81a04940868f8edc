"""The rows that a unit of work writes after moves of jobs and runs."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import JobCondition, Outcome, Reason
from solstice_orchestrator.store.decisions.transitions import IllegalMove, UnitOfWork
from solstice_orchestrator.store.records.changes import Attempt, Job, RefRun
from tests.builders import moment, run_of_one_job

NOW = 1000.0
RUNNING_JOB = run_of_one_job(1)


def job(name: str, state: JobState, **changes: Any) -> Job:
    made = {
        "job_id": name,
        "name": name,
        "state": state,
        "reason": Reason.PLANNED,
        "worker_id": None,
        "attempt": 0,
    }
    return replace(RUNNING_JOB.job, **{**made, **changes})


def unit_of(*jobs: Job, attempts: list[Attempt] | None = None, **run: Any) -> UnitOfWork:
    changed = {"state": RunState.RUNNING, "job_count": len(jobs), **run}
    return UnitOfWork(moment(NOW), [replace(RUNNING_JOB.run, **changed)], jobs, attempts or [])


def states_of(unit: UnitOfWork) -> dict[str, tuple[JobState, Reason]]:
    return {each.name: (each.state, each.reason) for each in unit.jobs_of("run-1")}


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_a_new_job_is_announced_in_its_first_state() -> None:
    unit = unit_of()
    unit.add(job("a", JobState.WAITING, waiting_since=None), b"{}")
    unit.add(job("b", JobState.BLOCKED, waiting_since=None), b"[]")
    changes = unit.changes()
    assert [(each.name, each.sequence, each.waiting_since) for each in changes.new_jobs] == [
        ("a", 1, NOW),
        ("b", 1, None),
    ]
    assert (changes.specs, changes.arrivals) == ({"a": b"{}", "b": b"[]"}, ["a"])
    assert [(each.job_name, each.state, each.sequence) for each in changes.statuses] == [
        ("a", JobState.WAITING, 1),
        ("b", JobState.BLOCKED, 1),
    ]
    assert not changes.jobs


def test_a_new_job_that_waits_for_a_group_asks_for_it() -> None:
    unit = unit_of()
    unit.add(job("a", JobState.BLOCKED, reason=Reason.CONCURRENCY_GROUP, group_key=b"g"), b"{}")
    assert unit.changes().groups == [b"g"]
    assert len(unit.changes().statuses) == 1


def test_a_move_is_announced_with_the_next_sequence() -> None:
    before = job("a", JobState.BLOCKED, sequence=4)
    unit = unit_of(before)
    unit.move(before, JobState.WAITING, Reason.NEEDS_MET, "at last")
    changes = unit.changes()
    (after,) = changes.jobs
    assert (after.state, after.reason, after.detail, after.sequence) == (
        JobState.WAITING,
        Reason.NEEDS_MET,
        "at last",
        5,
    )
    assert (after.waiting_since, after.finished_at) == (NOW, None)
    assert (changes.arrivals, changes.given_up, changes.jobs_before) == (["a"], [], {"a": before})
    assert [each.sequence for each in changes.statuses] == [5]


def test_only_a_job_that_never_waited_needs_a_start_tag() -> None:
    unit = unit_of(job("a", JobState.RUNNING), job("b", JobState.APPROVAL), job("c", JobState.BACKOFF))
    for name in "abc":
        unit.move(unit.jobs[name], JobState.WAITING, Reason.RELEASED)
    assert unit.changes().arrivals == ["b"]


def test_a_job_that_ends_while_it_waits_frees_its_start_tag() -> None:
    waits, runs = (
        job("a", JobState.WAITING, start_tag=7, waiting_since=5.0),
        job("b", JobState.RUNNING, waiting_since=6.0),
    )
    unit = unit_of(waits, runs)
    for each in (waits, runs):
        unit.move(each, JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert unit.changes().given_up == [waits]
    assert [(each.finished_at, each.waiting_since) for each in unit.changes().jobs] == [
        (NOW, 5.0),
        (NOW, 6.0),
    ]


def test_a_job_that_ends_leaves_its_group() -> None:
    before = job("a", JobState.RUNNING, group_key=b"g")
    unit = unit_of(before)
    unit.move(before, JobState.WAITING, Reason.RELEASED)
    assert unit.changes().groups == []
    unit.move(unit.jobs["a"], JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert unit.changes().groups == [b"g"]


def test_a_move_that_no_job_makes_is_refused() -> None:
    before = job("a", JobState.SUCCEEDED)
    with pytest.raises(IllegalMove, match="job a may not go from succeeded to running"):
        unit_of(before).move(before, JobState.RUNNING, Reason.CLAIMED)


@pytest.mark.parametrize(
    ("state", "arrives", "gives_up"),
    [
        (JobState.WAITING, True, True),
        (JobState.RUNNING, True, False),
        (JobState.BACKOFF, True, False),
        (JobState.BLOCKED, False, False),
        (JobState.APPROVAL, False, False),
    ],
)
def test_another_class_gives_another_turn_where_there_is_one(
    state: JobState, *, arrives: bool, gives_up: bool
) -> None:
    before = job("a", state, priority=2)
    unit = unit_of(before)
    unit.change_class("a", 0)
    changes = unit.changes()
    assert [each.priority for each in changes.jobs] == [0]
    assert changes.arrivals == (["a"] if arrives else [])
    assert changes.given_up == ([before] if gives_up else [])
    assert not changes.statuses


def test_an_attempt_is_closed_with_the_outcome_of_its_holder() -> None:
    unit = unit_of()
    outcome = Outcome(
        state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="make", detail="broke"
    )
    running = job("a", JobState.RUNNING, attempt=2, worker_id="w", started_at=900.0)
    attempt = unit.close(running, outcome)
    assert attempt == Attempt(
        "a", 2, "w", JobState.FAILED, Reason.STEP_FAILED, 900.0, NOW, 3, "make", "broke"
    )
    unknown = unit.close(replace(running, started_at=None, worker_id=None), outcome)
    assert (unknown.started_at, unknown.worker_id) == (NOW, "")
    assert unit.changes().attempts == [attempt, unknown]


# -- needs and groups ------------------------------------------------------------------------------------------------


def test_the_end_of_a_need_releases_or_skips_those_that_need_it() -> None:
    unit = unit_of(
        job("a", JobState.SUCCEEDED),
        job("b", JobState.FAILED),
        job("c", JobState.BLOCKED, needs='["a"]'),
        job("d", JobState.BLOCKED, needs='["a", "b"]'),
        job("e", JobState.BLOCKED, needs='["b"]', condition=JobCondition.ALWAYS.value),
    )
    unit.settle(["run-1"])
    assert states_of(unit) == {
        "a": (JobState.SUCCEEDED, Reason.PLANNED),
        "b": (JobState.FAILED, Reason.PLANNED),
        "c": (JobState.WAITING, Reason.NEEDS_MET),
        "d": (JobState.SKIPPED, Reason.NEEDS_FAILED),
        "e": (JobState.WAITING, Reason.NEEDS_MET),
    }


def test_a_job_that_is_ready_asks_for_its_group_once() -> None:
    unit = unit_of(
        job("a", JobState.SUCCEEDED), job("b", JobState.BLOCKED, needs='["a"]', group_key=b"g", sequence=1)
    )
    unit.settle(["run-1"])
    assert states_of(unit)["b"] == (JobState.BLOCKED, Reason.CONCURRENCY_GROUP)
    assert (unit.jobs["b"].sequence, unit.changes().groups) == (2, [b"g"])
    again = unit_of(*unit.jobs.values())
    again.settle(["run-1"])
    assert states_of(again) == states_of(unit)
    assert not again.changes().jobs
    assert not again.changes().groups


def test_a_job_that_waits_for_its_group_holds_up_no_other() -> None:
    unit = unit_of(
        job("a", JobState.SUCCEEDED),
        job("b", JobState.BLOCKED, needs='["a"]', group_key=b"g"),
        job("c", JobState.BLOCKED, needs='["a"]'),
    )
    unit.settle(["run-1"])
    assert states_of(unit)["c"] == (JobState.WAITING, Reason.NEEDS_MET)


@pytest.mark.parametrize(
    ("run", "own", "requested"),
    [
        ({"group_key": b"r", "group_acquired": False}, b"g", b"r"),
        ({"group_key": b"r", "group_acquired": True}, b"g", b"g"),
        ({"group_key": b"r", "group_acquired": True}, None, None),
        ({}, None, None),
    ],
    ids=["the run's first", "then its own", "its run holds it", "none"],
)
def test_a_job_asks_for_its_runs_group_before_its_own(
    run: dict[str, Any], own: bytes | None, requested: bytes | None
) -> None:
    unit = unit_of(job("a", JobState.BLOCKED, group_key=own), **run)
    assert unit.request_group("a") is (requested is not None)
    assert unit.changes().groups == ([] if requested is None else [requested])


def test_a_job_whose_run_got_the_group_may_start_as_planned() -> None:
    blocked = job("a", JobState.BLOCKED, reason=Reason.CONCURRENCY_GROUP)
    for has_group in (False, True):
        unit = unit_of(blocked, state=RunState.WAITING, group_key=b"r", group_acquired=has_group)
        unit.settle(["run-1"])
        state = JobState.WAITING if has_group else JobState.BLOCKED
        assert states_of(unit)["a"] == (state, Reason.PLANNED if has_group else Reason.CONCURRENCY_GROUP)


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_its_last_job_and_leaves_its_group() -> None:
    unit = unit_of(job("a", JobState.SUCCEEDED), group_key=b"r", sequence=5, plan_worker="w", plan_since=1.0)
    unit.settle(["run-1"])
    changes = unit.changes()
    (run,) = changes.runs
    assert (run.state, run.sequence, run.finished_at) == (RunState.SUCCEEDED, 6, NOW)
    assert (run.plan_worker, run.plan_since, changes.groups) == (None, None, [b"r"])
    (status,) = changes.statuses
    assert (status.state, status.description, status.reason) == (
        RunState.SUCCEEDED,
        "1 job: 1 succeeded",
        None,
    )


def test_a_run_that_stays_as_it_is_is_not_written() -> None:
    unit = unit_of(job("a", JobState.SUCCEEDED), job("b", JobState.WAITING))
    unit.settle(["run-1"])
    assert not unit.changes().runs
    assert not unit.changes().statuses


def test_a_run_starts_once() -> None:
    unit = unit_of(state=RunState.WAITING, started_at=None)
    unit.move_run("run-1", RunState.WAITING)
    assert unit.runs["run-1"].started_at is None
    unit.move_run("run-1", RunState.RUNNING)
    begun = unit.runs["run-1"]
    assert (begun.started_at, begun.finished_at) == (NOW, None)
    earlier = unit_of(state=RunState.WAITING, started_at=3.0)
    earlier.move_run("run-1", RunState.RUNNING)
    assert earlier.runs["run-1"].started_at == 3.0


@pytest.mark.parametrize(
    ("others", "reason", "detail"),
    [
        ([], Reason.SUPERSEDED, "superseded by r"),
        ([job("b", JobState.SUCCEEDED)], Reason.SUPERSEDED, "superseded by r"),
        ([job("b", JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)], None, ""),
    ],
    ids=["alone", "beside a success", "beside a cancelled one"],
)
def test_a_run_is_superseded_when_all_its_cancelled_jobs_were(
    others: list[Job], reason: Reason | None, detail: str
) -> None:
    ended = job("a", JobState.CANCELLED, reason=Reason.SUPERSEDED, detail="superseded by r")
    unit = unit_of(ended, *others)
    unit.settle(["run-1"])
    (status,) = unit.changes().statuses
    assert (status.state, status.reason) == (RunState.CANCELLED, reason)
    assert unit.runs["run-1"].detail == detail


def test_a_run_that_infrastructure_ended_becomes_a_dead_letter_with_its_history() -> None:
    def lost(name: str, number: int) -> Attempt:
        return Attempt(name, number, "w", JobState.ERRORED, Reason.AGENT_LOST, 1.0, 2.0, None, None, "gone")

    unit = unit_of(
        job("a", JobState.RUNNING, attempt=2, worker_id="w"),
        job("b", JobState.SUCCEEDED),
        attempts=[lost("a", 1), lost("b", 1)],
    )
    outcome = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail="no route")
    unit.close(unit.jobs["a"], outcome)
    unit.move(unit.jobs["a"], JobState.ERRORED, Reason.CHECKOUT_FAILED)
    unit.settle(["run-1"])
    (dead_letter,) = unit.changes().dead_letters
    headers = json.loads(dead_letter.headers)
    assert (dead_letter.request_id, dead_letter.body) == (
        RUNNING_JOB.subject.request_id,
        RUNNING_JOB.run.request,
    )
    assert (headers["x-solstice-reason"], headers["x-solstice-detail"]) == ("checkout_failed", "no route")
    assert [line.split(" on ")[0] for line in headers["x-solstice-history"].splitlines()] == ["a #1", "a #2"]
    assert headers["x-solstice-run"] == "run-1"
    assert headers["x-solstice-refused-at"] == "1970-01-01T00:16:40.000Z"


def test_a_run_whose_job_failed_is_no_dead_letter() -> None:
    unit = unit_of(job("a", JobState.FAILED))
    unit.settle(["run-1"])
    assert unit.runs["run-1"].state is RunState.FAILED
    assert not unit.changes().dead_letters


def test_a_run_that_began_with_its_only_job_is_known_to_run() -> None:
    running = job("a", JobState.RUNNING, started_at=7.0)
    unit = unit_of(running, state=RunState.WAITING, started_at=None, sequence=2)
    begun = unit.runs["run-1"]
    assert (begun.state, begun.started_at, begun.sequence) == (RunState.RUNNING, 7.0, 3)
    assert not unit.changes().runs
    unit.change_run("run-1", timeout_at=5.0)
    changes = unit.changes()
    assert changes.runs_before["run-1"].state is RunState.WAITING
    assert [run.timeout_at for run in changes.runs] == [5.0]


def test_what_no_status_shows_is_written_without_one() -> None:
    unit = unit_of(job("a", JobState.RUNNING))
    unit.change("a", cancel_requested=True)
    push = RefRun("run-1", b"branch", None, False, "c", None, 0.0)
    unit.add_ref_run(push)
    changes = unit.changes()
    assert [each.cancel_requested for each in changes.jobs] == [True]
    assert (changes.ref_runs, list(changes.statuses)) == ([push], [])


def test_statuses_of_a_run_share_what_is_known_of_it() -> None:
    known = replace(RUNNING_JOB.subject, description="known")
    unit = UnitOfWork(moment(NOW), [RUNNING_JOB.run], [], subjects={"run-1": known})
    assert unit.subject(RUNNING_JOB.run) is known
    fresh = UnitOfWork(moment(NOW), [RUNNING_JOB.run])
    assert fresh.subject(RUNNING_JOB.run) == RUNNING_JOB.subject
    assert fresh.subject(RUNNING_JOB.run) is fresh.subject(RUNNING_JOB.run)
