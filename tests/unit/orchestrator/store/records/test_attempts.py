"""Which ended attempts need rows of their own, beside those of their jobs."""

import sqlite3
from dataclasses import fields
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.records.attempts import ENDED_ATTEMPTS, attempts_to_insert, job_row_holds
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
    image="localhost/build:1",
    provisioning_seconds=2.5,
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
    image="localhost/build:1",
    provisioning_seconds=2.5,
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
    "image": "",
    "provisioning_seconds": None,
}


def test_an_ended_job_reports_its_last_attempt() -> None:
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


def test_every_ended_attempt_is_found_once_in_its_row_or_in_that_of_its_job() -> None:
    gone_on = replace(JOB, job_id="k", attempt=1, finished_at=None)
    never_ran = replace(JOB, job_id="l", worker_id=None)
    retried = replace(JOB, job_id="m", detail="retrying 1 of 1")
    rows = [ATTEMPT._replace(job_id="k", number=1), ATTEMPT._replace(job_id="m"), ATTEMPT._replace(number=1)]
    database = sqlite3.connect(":memory:")
    for table, names in (("jobs", Job.__struct_fields__), ("attempts", Attempt._fields)):
        database.execute(f"CREATE TABLE {table} ({', '.join(names)})")
        values = map(astuple, (JOB, gone_on, never_ran, retried)) if table == "jobs" else rows
        database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", values)  # noqa: S608  our own names
    found = database.execute(f"SELECT * FROM {ENDED_ATTEMPTS}").fetchall()  # noqa: S608  our own text
    assert sorted(Attempt(*row) for row in found) == sorted([ATTEMPT, *rows])


def test_an_attempt_whose_job_is_not_written_needs_a_row() -> None:
    assert attempts_to_insert(RowChanges(attempts=[ATTEMPT])) == [ATTEMPT]
    other = ATTEMPT._replace(job_id="k")
    assert attempts_to_insert(RowChanges(jobs=[JOB], attempts=[ATTEMPT, other])) == [other]
