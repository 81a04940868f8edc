"""The effects of cancels, priorities and time limits on jobs and runs."""

from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.decisions.steer import (
    as_requested,
    cancel_job,
    cancel_run,
    end_run,
    prioritise,
    requested_end,
    rerun,
    time_out,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from tests.builders import moment, run_of_one_job

NOW = 1000.0
RUNNING_JOB = run_of_one_job(1)
CANCELLED = Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED, detail="by its holder")


def unit_of(*states: JobState, job: dict[str, Any] | None = None, **run: Any) -> UnitOfWork:
    """A run with a job in each of these states."""
    jobs = [
        replace(RUNNING_JOB.job, job_id=f"job-{place}", name=f"job-{place}", state=state, **(job or {}))
        for place, state in enumerate(states)
    ]
    changed = {"state": RunState.RUNNING, "job_count": len(states), **run}
    return UnitOfWork(moment(NOW), [replace(RUNNING_JOB.run, **changed)], jobs)


def test_a_job_that_does_not_run_is_cancelled_at_once() -> None:
    unit = unit_of(JobState.BACKOFF, job={"retry_at": NOW + 5})
    cancel_job(unit, "job-0", "by ada")
    job = unit.jobs["job-0"]
    assert (job.state, job.reason, job.detail) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED, "by ada")
    assert job.retry_at is None
    assert unit.runs["run-1"].state is RunState.CANCELLED


def test_the_holder_of_a_running_job_is_asked_and_the_first_request_counts() -> None:
    unit = unit_of(JobState.RUNNING)
    cancel_job(unit, "job-0", "by ada\x00")
    job = unit.jobs["job-0"]
    assert (job.state, job.cancel_requested, job.ending) == (JobState.RUNNING, True, "cancel_requested")
    assert job.ending_detail.startswith("by ada")
    assert "\x00" not in job.ending_detail
    end_run(unit, "run-1", Reason.RUN_TIMEOUT, "too long")
    assert unit.jobs["job-0"] == job


@pytest.mark.parametrize(
    "steering", [cancel_job, lambda unit, job_id: prioritise(unit, job_id, Priority.HIGH)]
)
@pytest.mark.parametrize("job_id", ["job-0", "unknown"])
def test_what_has_ended_or_is_not_there_stays_as_it_is(steering: Any, job_id: str) -> None:
    unit = unit_of(JobState.SUCCEEDED)
    steering(unit, job_id)
    assert not unit.changes().jobs


def test_another_priority_is_another_class() -> None:
    unit = unit_of(JobState.WAITING, job={"priority": rank(Priority.DEFAULT)})
    prioritise(unit, "job-0", Priority.DEFAULT)
    assert not unit.changes().jobs
    prioritise(unit, "job-0", Priority.HIGH)
    assert unit.jobs["job-0"].priority == rank(Priority.HIGH)
    assert unit.changes().arrivals == ["job-0"]


def test_a_cancelled_run_ends_each_job_that_has_not_ended() -> None:
    unit = unit_of(JobState.SUCCEEDED, JobState.RUNNING, JobState.WAITING)
    cancel_run(unit, "run-1", "by ada")
    assert [job.state for job in unit.jobs.values()] == [
        JobState.SUCCEEDED,
        JobState.RUNNING,
        JobState.CANCELLED,
    ]
    assert [job.cancel_requested for job in unit.jobs.values()] == [False, True, False]
    assert unit.runs["run-1"].state is RunState.RUNNING


@pytest.mark.parametrize("state", [RunState.PLANNING, RunState.DELAYED])
@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (Reason.CANCEL_REQUESTED, RunState.CANCELLED),
        (Reason.SUPERSEDED, RunState.CANCELLED),
        (Reason.RUN_TIMEOUT, RunState.TIMED_OUT),
    ],
)
def test_a_run_without_jobs_ends_itself(state: RunState, reason: Reason, end: RunState) -> None:
    unit = unit_of(state=state)
    end_run(unit, "run-1", reason, "why")
    assert (unit.runs["run-1"].state, unit.runs["run-1"].detail) == (end, "why")
    assert [status.reason for status in unit.changes().statuses] == [reason]


def test_a_run_that_has_ended_or_is_not_there_stays_as_it_is() -> None:
    unit = unit_of(JobState.WAITING, state=RunState.ERRORED)
    cancel_run(unit, "run-1")
    cancel_run(unit, "run-2")
    assert not unit.changes().jobs
    assert not unit.changes().runs


def test_a_run_out_of_time_is_ended_once() -> None:
    unit = unit_of(JobState.WAITING, JobState.RUNNING, timeout_at=NOW)
    time_out(unit)
    waited, ran = unit.jobs.values()
    assert (waited.state, waited.reason) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)
    assert (ran.state, ran.ending) == (JobState.RUNNING, "run_timeout")
    assert unit.runs["run-1"].timeout_at is None


@pytest.mark.parametrize(
    ("timeout_at", "state"),
    [(NOW + 1, JobState.WAITING), (None, JobState.WAITING), (NOW, JobState.APPROVAL)],
    ids=["in time", "without limit", "before its approval"],
)
def test_a_run_in_time_goes_on(timeout_at: float | None, state: JobState) -> None:
    unit = unit_of(state, timeout_at=timeout_at)
    time_out(unit)
    assert not unit.changes().jobs
    assert unit.runs["run-1"].timeout_at == timeout_at


def test_every_rerun_has_an_id_of_its_own() -> None:
    unit = unit_of(JobState.FAILED, state=RunState.FAILED)
    reruns = [rerun(unit, "run-1") for _ in range(20)]
    assert len({each.request.request_id for each in reruns if each is not None}) == 20


def test_an_end_that_was_asked_for_has_the_reason_of_the_request() -> None:
    cancelled_row = replace(
        RUNNING_JOB.job, cancel_requested=True, ending="run_timeout", ending_detail="after 2 h"
    )
    end = as_requested(cancelled_row, CANCELLED)
    assert (end.state, end.reason, end.detail) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT, "after 2 h")
    by_a_person = requested_end(replace(cancelled_row, ending="", ending_detail=""), CANCELLED)
    assert (by_a_person.state, by_a_person.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)


def test_an_unrequested_end_has_the_outcome_of_its_holder() -> None:
    done = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED)
    assert as_requested(None, CANCELLED) is CANCELLED
    assert as_requested(RUNNING_JOB.job, CANCELLED) is CANCELLED
    assert as_requested(replace(RUNNING_JOB.job, cancel_requested=True, ending="superseded"), done) is done
