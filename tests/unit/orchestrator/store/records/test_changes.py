"""The properties of changed rows beyond their columns."""

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import RunState
from solstice_orchestrator.store.records.changes import RowChanges, Run, begun_with
from tests.builders import run_of_one_job

RUNNING_JOB = run_of_one_job(1)
WAITS = replace(RUNNING_JOB.run, state=RunState.WAITING, started_at=None)
JOB = replace(RUNNING_JOB.job, started_at=7.0)


def test_a_run_whose_only_job_runs_is_running_since_that_job_and_one_status_further() -> None:
    begun = begun_with(WAITS, JOB)
    assert begun == replace(WAITS, state=RunState.RUNNING, sequence=WAITS.sequence + 1, started_at=7.0)


def test_a_run_that_began_before_keeps_its_start() -> None:
    assert begun_with(replace(WAITS, started_at=3.0), JOB).started_at == 3.0


@pytest.mark.parametrize(
    "run",
    [replace(WAITS, job_count=2), replace(WAITS, job_count=0), replace(WAITS, state=RunState.RUNNING)],
    ids=["of several jobs", "not counted", "running"],
)
def test_any_other_run_says_itself_how_it_is(run: Run) -> None:
    assert begun_with(run, JOB) is run


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        (RowChanges(jobs=[JOB]), True),
        (RowChanges(arrivals=[JOB.job_id]), False),
        (RowChanges(given_up=[JOB]), False),
        (RowChanges(groups=[b"g"]), False),
    ],
    ids=["rows", "start tags to give", "start tags to free", "groups to settle"],
)
def test_rows_are_all_there_is_to_write_without_turns_and_groups(changes: RowChanges, *, alone: bool) -> None:
    assert changes.rows_alone is alone
