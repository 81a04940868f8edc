"""The runs that a cancel request ends."""

from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.cancels import change_key
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.decisions.cancel import (
    CancelRow,
    cancel_row_of,
    cancelled,
    end_cancelled_runs,
)
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import Cancelled
from tests.builders import job_cancel, job_request, moment, run_of_one_job

NOON = 1_772_366_400.0
"""2026-03-01, when the requests and cancel requests of `builders` are made."""
LATER = "2026-03-01T12:00:01Z"


def unit_of(state: RunState = RunState.RUNNING, created_at: float = NOON + 9, **request: Any) -> UnitOfWork:
    known = run_of_one_job(1)
    request_now = job_request(**{"change_number": 7, **request})
    run = replace(known.run, state=state, created_at=created_at, request=request_now.encode())
    return UnitOfWork(moment(NOON + 10), [run], [replace(known.job, state=JobState.WAITING)])


def test_a_cancel_request_is_kept_with_its_author_and_time() -> None:
    cancel = job_cancel()
    assert cancel_row_of(cancel, NOON + 5) == CancelRow(
        change_key(cancel) or "", NOON, "/cancel by ada-brook", NOON + 5
    )
    assert cancel_row_of(cancel, NOON - 5).requested_at == NOON - 5


def test_what_was_asked_for_before_a_cancel_request_is_ended() -> None:
    unit = unit_of()
    assert end_cancelled_runs(unit, [cancel_row_of(job_cancel(submitted_at=LATER), NOON + 9)]) == ["run-1"]
    (job,) = unit.jobs.values()
    assert (job.state, job.reason, job.detail) == (
        JobState.CANCELLED,
        Reason.CANCEL_REQUESTED,
        "/cancel by ada-brook",
    )
    assert unit.runs["run-1"].state is RunState.CANCELLED


@pytest.mark.parametrize(
    "changes",
    [
        {"submitted_at": LATER},
        {"change_number": 8},
        {"change_number": None},
        {"state": RunState.SUCCEEDED},
    ],
    ids=["asked for later", "another change", "no change", "ended"],
)
def test_other_runs_go_on(changes: dict[str, Any]) -> None:
    unit = unit_of(**changes)
    assert end_cancelled_runs(unit, [cancel_row_of(job_cancel(submitted_at=LATER), NOON + 9)]) == []
    assert not unit.changes().jobs


def test_a_request_from_the_future_was_made_when_it_came() -> None:
    unit = unit_of(submitted_at="2027-01-01T00:00:00Z", created_at=NOON)
    assert end_cancelled_runs(unit, [cancel_row_of(job_cancel(submitted_at=LATER), NOON + 9)]) == ["run-1"]


def test_without_a_cancel_request_nothing_ends() -> None:
    assert end_cancelled_runs(unit_of(), []) == []
    assert end_cancelled_runs(unit_of(change_number=None), []) == []


@pytest.mark.parametrize(
    ("unit", "known", "expected"),
    [
        (unit_of(), True, Cancelled(run_ids=("run-1",), known=True)),
        (UnitOfWork(moment(NOON + 10), [], []), True, Cancelled(run_ids=(), known=True)),
        (UnitOfWork(moment(NOON + 10), [], []), False, Cancelled(run_ids=(), known=False)),
    ],
    ids=["one goes on", "all have ended", "none ever was"],
)
def test_a_cancel_request_says_what_it_ended(unit: UnitOfWork, known: bool, expected: Cancelled) -> None:
    row = cancel_row_of(job_cancel(submitted_at=LATER), NOON + 9)
    assert cancelled(unit, row, known=known) == expected
