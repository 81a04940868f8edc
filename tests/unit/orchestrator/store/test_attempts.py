"""Which ended attempts need rows of their own, beside those of their jobs."""

from dataclasses import fields
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.records.attempts import attempts_to_insert, job_row_holds
from solstice_orchestrator.store.records.changes import Attempt, Job, RowChanges
from solstice_orchestrator.store.views import AttemptView

ATTEMPT = Attempt(
    job_id="j",
    number=2,
    worker_id="w",
    state=JobState.FAILED,
    reason=Reason.STEP_FAILED,
    started_at=1.5,
    finished_at=2.5,
    exit_code=3,
    step="test",
    detail="so it goes",
)
JOB = Job(
    state=JobState.FAILED,
    reason=Reason.STEP_FAILED,
    job_id="j",
    run_id="r",
    position=0,
    name="test",
    runs_on="linux",
    priority=1,
    repository="acme/app",
    needs="[]",
    created_at=0.5,
    detail="so it goes",
    attempt=2,
    started_at=1.5,
    finished_at=2.5,
    exit_code=3,
    step="test",
    worker_id="w",
)
OTHERWISE: dict[str, Any] = {
    "attempt": 3,
    "worker_id": None,
    "state": JobState.CANCELLED,
    "reason": Reason.CANCEL_REQUESTED,
    "started_at": 1.25,
    "finished_at": None,
    "exit_code": None,
    "step": "build",
    "detail": "",
}


def test_an_ended_job_tells_of_its_last_attempt() -> None:
    assert job_row_holds(JOB, ATTEMPT)
    assert attempts_to_insert(RowChanges(jobs=[JOB], attempts=[ATTEMPT])) == []


@pytest.mark.parametrize("column", OTHERWISE)
def test_an_attempt_of_which_the_job_says_something_else_needs_a_row(column: str) -> None:
    job = replace(JOB, **{column: OTHERWISE[column]})
    assert attempts_to_insert(RowChanges(jobs=[job], attempts=[ATTEMPT])) == [ATTEMPT]


def test_all_that_readers_see_of_an_attempt_is_compared() -> None:
    assert {"number" if column == "attempt" else column for column in OTHERWISE} == {
        each.name for each in fields(AttemptView)
    }


def test_an_attempt_whose_job_is_not_written_needs_a_row() -> None:
    assert attempts_to_insert(RowChanges(attempts=[ATTEMPT])) == [ATTEMPT]
    other = ATTEMPT._replace(job_id="k")
    assert attempts_to_insert(RowChanges(jobs=[JOB], attempts=[ATTEMPT, other])) == [other]
