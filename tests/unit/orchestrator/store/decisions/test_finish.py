"""The changes that follow the end of an attempt."""

from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Outcome, Reason
from solstice_orchestrator.store.decisions.finish import (
    AttemptEnd,
    ended_attempts,
    finish_attempts,
    running_job,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.changes import Attempt, Job
from tests.builders import moment, run_of_one_job
from tests.stores import retries_after

NOW = 1000.0
RUNNING = run_of_one_job(1)
KEY = AttemptKey(job_id=RUNNING.job.job_id, number=1)
DONE = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0, step="make")
BROKEN = Outcome(
    state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="make", detail="it broke"
)
RELEASED = Outcome(state=JobState.WAITING, reason=Reason.RELEASED)


def unit_of(**changes: Any) -> UnitOfWork:
    job = replace(RUNNING.job, **{"started_at": 900.0, "lease_until": NOW + 1, **changes})
    return UnitOfWork(moment(NOW, retries=retries_after(4.0)), [RUNNING.run], [job])


def end(unit: UnitOfWork, outcome: Outcome) -> Job:
    assert finish_attempts(unit, [AttemptEnd(KEY, outcome)], {}) == [True]
    return unit.jobs[KEY.job_id]


def test_an_end_closes_the_attempt_and_ends_job_and_run() -> None:
    unit = unit_of()
    job = end(unit, DONE)
    assert (job.state, job.reason, job.finished_at) == (JobState.SUCCEEDED, Reason.COMPLETED, NOW)
    assert (job.exit_code, job.step, job.lease_until, job.worker_id) == (0, "make", None, "w")
    assert unit.runs["run-1"].state is RunState.SUCCEEDED
    (attempt,) = unit.changes().attempts
    assert attempt == Attempt(
        KEY.job_id, 1, "w", JobState.SUCCEEDED, Reason.COMPLETED, 900.0, NOW, 0, "make", ""
    )


def test_an_end_that_was_recorded_is_recorded_and_another_is_refused() -> None:
    unit = unit_of()
    assert finish_attempts(
        unit, [AttemptEnd(KEY, BROKEN), AttemptEnd(KEY, BROKEN), AttemptEnd(KEY, DONE)], {}
    ) == [True, True, False]
    (past,) = unit.changes().attempts
    later = unit_of(attempt=2)
    assert finish_attempts(later, [AttemptEnd(KEY, BROKEN)], {KEY: past}) == [True]
    assert finish_attempts(later, [AttemptEnd(KEY, BROKEN)], {}) == [False]
    assert not later.changes().jobs


@pytest.mark.parametrize(
    "changed",
    [
        {"state": JobState.CANCELLED},
        {"reason": Reason.NO_OUTPUT},
        {"exit_code": 4},
        {"step": "x"},
        {"detail": "y"},
    ],
    ids=["state", "reason", "exit code", "step", "detail"],
)
def test_an_end_is_the_same_only_in_all_that_it_says(changed: dict[str, Any]) -> None:
    past = Attempt(KEY.job_id, 1, "w", JobState.FAILED, Reason.STEP_FAILED, 1.0, 2.0, 3, "make", "it broke")
    unit = unit_of(attempt=2)
    assert finish_attempts(unit, [AttemptEnd(KEY, BROKEN)], {KEY: past}) == [True]
    assert finish_attempts(unit, [AttemptEnd(KEY, BROKEN)], {KEY: past._replace(**changed)}) == [False]


def test_only_the_current_attempt_of_a_running_job_is_running() -> None:
    unit = unit_of()
    assert running_job(unit, KEY) == unit.jobs[KEY.job_id]
    gone = [AttemptKey(job_id=KEY.job_id, number=2), AttemptKey(job_id="unknown", number=1)]
    assert ended_attempts(unit, [AttemptEnd(key, DONE) for key in (KEY, *gone)]) == gone
    assert running_job(unit_of(state=JobState.WAITING), KEY) is None


def test_a_released_job_waits_again_at_no_cost() -> None:
    job = end(unit_of(), RELEASED)
    assert (job.state, job.reason, job.worker_id, job.failures) == (
        JobState.WAITING,
        Reason.RELEASED,
        None,
        0,
    )


def test_a_release_after_the_lease_counts_as_a_lease_that_ran_out() -> None:
    unit = unit_of(lease_until=NOW)
    job = end(unit, RELEASED)
    assert (job.state, job.reason, job.failures) == (JobState.BACKOFF, Reason.LEASE_EXPIRED, 1)
    (attempt,) = unit.changes().attempts
    assert (attempt.state, attempt.detail) == (
        JobState.ERRORED,
        "handed back by w after its lease had run out",
    )
    assert end(unit_of(lease_until=None), RELEASED).state is JobState.WAITING


def test_infrastructure_failures_are_tried_again_until_the_budget_is_spent() -> None:
    lost = Outcome(state=JobState.ERRORED, reason=Reason.AGENT_LOST, detail="gone")
    job = end(unit_of(), lost)
    assert (job.state, job.reason, job.detail) == (JobState.BACKOFF, Reason.AGENT_LOST, "gone")
    assert (job.failures, job.worker_id) == (1, None)
    assert job.retry_at is not None
    assert NOW < job.retry_at <= NOW + 4.0
    spent = end(unit_of(failures=MAX_ATTEMPTS - 1), lost)
    assert (spent.state, spent.reason, spent.failures) == (JobState.ERRORED, Reason.AGENT_LOST, MAX_ATTEMPTS)
    assert (spent.retry_at, spent.worker_id) == (None, "w")


def test_what_the_machine_causes_is_tried_again_without_counting() -> None:
    job = end(
        unit_of(failures=MAX_ATTEMPTS - 1), Outcome(state=JobState.ERRORED, reason=Reason.MACHINE_FAILED)
    )
    assert (job.state, job.failures) == (JobState.BACKOFF, MAX_ATTEMPTS - 1)
    assert job.retry_at is not None
    assert NOW + 2.0 <= job.retry_at <= NOW + 4.0


def test_a_failure_of_the_job_is_retried_at_once_as_often_as_its_author_allows() -> None:
    job = end(unit_of(retries=2), BROKEN)
    assert (job.state, job.reason, job.detail) == (
        JobState.WAITING,
        Reason.RETRYING,
        "retrying 1 of 2: it broke",
    )
    assert (job.retried, job.worker_id, job.exit_code, job.step) == (1, None, None, None)
    spent = end(unit_of(retries=2, retried=2), BROKEN)
    assert (spent.state, spent.retried, spent.exit_code) == (JobState.FAILED, 2, 3)
    assert end(unit_of(retries=2), DONE).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (Outcome(state=JobState.ERRORED, reason=Reason.AGENT_LOST), JobState.TIMED_OUT, Reason.RUN_TIMEOUT),
        (RELEASED, JobState.TIMED_OUT, Reason.RUN_TIMEOUT),
        (BROKEN, JobState.FAILED, Reason.STEP_FAILED),
        (DONE, JobState.SUCCEEDED, Reason.COMPLETED),
    ],
    ids=["infrastructure", "released", "failed", "succeeded"],
)
def test_a_job_whose_end_was_asked_for_is_not_tried_again(
    outcome: Outcome, state: JobState, reason: Reason
) -> None:
    unit = unit_of(
        cancel_requested=True, ending=Reason.RUN_TIMEOUT.value, ending_detail="after 2 h", retries=2
    )
    job = end(unit, outcome)
    assert (job.state, job.reason) == (state, reason)
    assert job.detail == ("after 2 h" if reason is Reason.RUN_TIMEOUT else outcome.detail)
