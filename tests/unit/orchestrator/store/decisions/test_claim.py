"""A claim's result for the worker, and its changes of jobs and runs."""

import pytest
from msgspec.structs import replace

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.starts import StartBudget, StartLimits
from solstice_orchestrator.store.decisions.claim import ChosenJobs, assign_jobs, end_backoffs
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.changes import Job
from solstice_orchestrator.store.records.rows import encode_spec
from tests.builders import job, moment, run_of_one_job

NOW = 1000.0
RUNNING_JOB = run_of_one_job(1)
SPEC = job("make")
WAITING = replace(
    RUNNING_JOB.job,
    state=JobState.WAITING,
    attempt=1,
    worker_id=None,
    waiting_since=900.0,
    created_at=800.0,
    retry_at=5.0,
    exit_code=3,
    step="make",
    started_at=850.0,
)


def unit_of(run_state: RunState, *jobs: Job) -> UnitOfWork:
    run = replace(RUNNING_JOB.run, state=run_state, started_at=None, job_count=2)
    return UnitOfWork(moment(NOW, lease_seconds=30.0), [run], jobs)


def test_a_claimed_job_runs_for_its_worker_under_a_lease_as_a_new_attempt() -> None:
    unit = unit_of(RunState.RUNNING, WAITING)
    (claim,) = assign_jobs(unit, "w", [WAITING.job_id], {WAITING.job_id: encode_spec(SPEC)}, {})
    assert claim.key == AttemptKey(job_id=WAITING.job_id, number=2)
    assert (claim.run_id, claim.spec, claim.body) == ("run-1", SPEC, RUNNING_JOB.run.request)
    assert (claim.lease_until, claim.waiting_since) == (1030.0, 900.0)
    claimed_job = unit.jobs[WAITING.job_id]
    assert (claimed_job.state, claimed_job.reason, claimed_job.worker_id) == (
        JobState.RUNNING,
        Reason.CLAIMED,
        "w",
    )
    assert (claimed_job.attempt, claimed_job.lease_until, claimed_job.started_at) == (2, 1030.0, NOW)
    assert (claimed_job.retry_at, claimed_job.exit_code, claimed_job.step) == (None, None, None)


def test_a_job_that_never_waited_for_a_slot_has_waited_since_it_was_made() -> None:
    unit = unit_of(RunState.RUNNING, replace(WAITING, waiting_since=None))
    (claim,) = assign_jobs(unit, "w", [WAITING.job_id], {WAITING.job_id: encode_spec(SPEC)}, {})
    assert claim.waiting_since == 800.0


def test_a_run_begins_with_its_first_jobs_and_says_what_all_of_them_do() -> None:
    other = replace(WAITING, job_id="other", name="other")
    unit = unit_of(RunState.WAITING, WAITING, other)
    siblings = {
        "run-1": {WAITING.job_id: JobState.WAITING, "other": JobState.WAITING, "late": JobState.BLOCKED}
    }
    specs = {each.job_id: encode_spec(SPEC) for each in (WAITING, other)}
    assign_jobs(unit, "w", [WAITING.job_id, "other"], specs, siblings)
    run = unit.runs["run-1"]
    assert (run.state, run.started_at) == (RunState.RUNNING, NOW)
    status = unit.changes().statuses[-1]
    assert (status.state, status.description) == (RunState.RUNNING, "3 jobs: 1 blocked, 2 running")


def test_a_run_that_has_begun_is_not_begun_again() -> None:
    unit = unit_of(RunState.RUNNING, WAITING)
    assign_jobs(unit, "w", [WAITING.job_id], {WAITING.job_id: encode_spec(SPEC)}, {})
    assert not unit.changes().runs


@pytest.mark.parametrize(
    ("state", "retry_at", "over"),
    [
        (JobState.BACKOFF, NOW, True),
        (JobState.BACKOFF, NOW + 1, False),
        (JobState.BACKOFF, None, False),
        (JobState.BLOCKED, NOW, False),
    ],
    ids=["over", "not over", "never", "no backoff"],
)
def test_a_job_whose_backoff_is_over_waits_again(
    state: JobState, retry_at: float | None, *, over: bool
) -> None:
    before = replace(WAITING, state=state, retry_at=retry_at)
    unit = unit_of(RunState.RUNNING, before)
    end_backoffs(unit)
    after = unit.jobs[before.job_id]
    if over:
        assert (after.state, after.reason, after.retry_at) == (JobState.WAITING, Reason.BACKOFF_OVER, None)
        assert after.waiting_since == NOW
    else:
        assert after == before


def candidate(job_id: str, repository: str) -> Candidate:
    return Candidate(
        job_id=job_id, label="linux", priority=Priority.DEFAULT, age=int(job_id), repository=repository
    )


def test_selection_reads_on_without_repositories_at_their_cap_until_its_slots_are_used() -> None:
    starts = StartBudget(
        limits=StartLimits(caps=parse_caps("acme/app=1,acme/docs=1")), running={"acme/docs": 1}
    )
    selection = ChosenJobs(starts, {"linux": 3, "illumos": 0}, 2)
    assert (selection.to_read(), set(selection.excluded.repositories)) == ({"linux": 2}, {"acme/docs"})
    first = [candidate("1", "acme/app"), candidate("2", "acme/app")]
    repositories, owners = selection.new_senders(first)
    assert (repositories, owners) == ({"acme/app"}, {""})
    selection.add_remaining(starts.remaining(repositories, owners))
    assert [each.job_id for each in selection.choose(first, overdue_before=NOW)] == ["1"]
    assert (selection.to_read(), set(selection.excluded.repositories)) == (
        {"linux": 1},
        {"acme/app", "acme/docs"},
    )
    assert selection.new_senders(first)[0] == set()
    selection.choose([candidate("3", "reef/tide")], overdue_before=NOW)
    assert [each.job_id for each in selection.chosen] == ["1", "3"]
    assert selection.to_read() == {}


def test_selection_without_limits_of_senders_excludes_none() -> None:
    selection = ChosenJobs(StartBudget(), {"linux": 2}, 5)
    selection.choose([candidate("1", "acme/app")], overdue_before=NOW)
    assert (selection.limited, selection.excluded.repositories, selection.to_read()) == (
        False,
        frozenset(),
        {"linux": 1},
    )
