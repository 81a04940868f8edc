"""The request that a rerun admits, and its refusals."""

import json
import random

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.store.decisions.steer import Rerun, rerun, rerun_failed, rerun_job
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from tests.builders import job_request, run_of_one_job

MOMENT = Moment(1_800_000_000.0, StoreRules(new_id=id_source(random.Random(1)), rng=random.Random(2)))


def unit_of(*states: JobState, run: RunState) -> UnitOfWork:
    """A run with jobs in these states; each but the first needs the previous."""
    known = run_of_one_job(1)
    jobs = [
        replace(
            known.job,
            job_id=f"job-{position}",
            position=position,
            name=f"step-{position}",
            state=state,
            needs=json.dumps([f"step-{position - 1}"] if position else []),
        )
        for position, state in enumerate(states)
    ]
    request = job_request(idempotency_key="push 1", not_before="2027-01-01T00:00:00Z", later=2**70)
    return UnitOfWork(MOMENT, [replace(known.run, state=run, request=request.encode())], jobs)


def test_a_rerun_is_the_same_request_under_a_new_id_without_key_and_delay() -> None:
    unit = unit_of(JobState.RUNNING, run=RunState.RUNNING)
    again = rerun(unit, "run-1")
    assert again is not None
    assert (again.rerun_of, again.only_jobs) == ("run-1", None)
    before, after = json.loads(unit.runs["run-1"].request), json.loads(again.request.encode())
    for gone in ("idempotency_key", "not_before"):
        del before[gone]
    assert {name for name in before if before[name] != after.get(name)} == {"request_id", "submitted_at"}
    assert before.keys() == after.keys()
    assert after["submitted_at"] == MOMENT.stamp


def test_what_failed_is_run_again_with_what_needs_it() -> None:
    unit = unit_of(JobState.SUCCEEDED, JobState.FAILED, JobState.SKIPPED, run=RunState.FAILED)
    again = rerun_failed(unit, "run-1")
    assert isinstance(again, Rerun)
    assert again.only_jobs == '["step-1", "step-2"]'


def test_a_job_is_run_again_with_what_needs_it() -> None:
    unit = unit_of(JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.SUCCEEDED, run=RunState.SUCCEEDED)
    again = rerun_job(unit, "job-1")
    assert isinstance(again, Rerun)
    assert again.only_jobs == '["step-1", "step-2"]'


def test_a_run_that_failed_before_it_had_jobs_is_run_again_whole() -> None:
    again = rerun_failed(unit_of(run=RunState.ERRORED), "run-1")
    assert isinstance(again, Rerun)
    assert again.only_jobs is None


@pytest.mark.parametrize(
    ("run", "job", "refusal"),
    [
        (RunState.RUNNING, JobState.FAILED, RerunRefusal.NOT_ENDED),
        (RunState.SUCCEEDED, JobState.SUCCEEDED, RerunRefusal.NOTHING_FAILED),
    ],
)
def test_failed_jobs_are_run_again_only_once_the_run_has_ended_with_some(
    run: RunState, job: JobState, refusal: RerunRefusal
) -> None:
    assert rerun_failed(unit_of(job, run=run), "run-1") is refusal


def test_a_job_is_run_again_only_once_its_run_has_ended() -> None:
    unit = unit_of(JobState.FAILED, JobState.RUNNING, run=RunState.RUNNING)
    assert rerun_job(unit, "job-0") is RerunRefusal.NOT_ENDED


def test_what_does_not_exist_is_not_run_again() -> None:
    unit = unit_of(JobState.FAILED, run=RunState.FAILED)
    assert rerun(unit, "run-2") is None
    assert rerun_failed(unit, "run-2") is None
    assert rerun_job(unit, "job-9") is None
