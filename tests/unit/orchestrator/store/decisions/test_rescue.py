"""Rescue takes back work from lost, slow and late workers."""

from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.decisions.rescue import rescue_expired
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey
from tests.builders import moment, run_of_one_job

NOW = 1000.0
RUNNING = run_of_one_job(1)
KEY = AttemptKey(job_id=RUNNING.job.job_id, number=1)


def unit_of(run: dict[str, Any], **job: Any) -> UnitOfWork:
    return UnitOfWork(
        moment(NOW, lease_seconds=60.0),
        [replace(RUNNING.run, **run)],
        [replace(RUNNING.job, **job)] if job else [],
    )


@pytest.mark.parametrize(
    ("seen_at", "reason"),
    [
        (None, Reason.AGENT_LOST),
        (NOW - 30.0, Reason.AGENT_LOST),
        (NOW - 29.0, Reason.LEASE_EXPIRED),
    ],
    ids=["never seen", "silent for half a lease", "alive"],
)
def test_an_attempt_whose_lease_ran_out_is_taken_back(seen_at: float | None, reason: Reason) -> None:
    unit = unit_of({}, lease_until=NOW)
    assert rescue_expired(unit, {} if seen_at is None else {"w": seen_at}) == [KEY]
    job = unit.jobs[KEY.job_id]
    assert (job.state, job.reason, job.detail) == (JobState.BACKOFF, reason, "held by w")
    assert unit.runs["run-1"].state is RunState.WAITING
    assert [attempt.state for attempt in unit.changes().attempts] == [JobState.ERRORED]


def test_a_run_is_settled_when_its_last_job_is_taken_back_for_good() -> None:
    unit = unit_of({}, lease_until=NOW - 1, cancel_requested=True)
    rescue_expired(unit, {})
    assert unit.runs["run-1"].state is RunState.CANCELLED


@pytest.mark.parametrize(
    "job",
    [{"lease_until": NOW + 1}, {"lease_until": None}, {"state": JobState.WAITING, "lease_until": NOW - 1}],
    ids=["leased", "no lease", "not running"],
)
def test_what_runs_in_time_is_left_alone(job: dict[str, Any]) -> None:
    unit = unit_of({}, **job)
    assert rescue_expired(unit, {}) == []
    assert not unit.changes().jobs


@pytest.mark.parametrize(
    ("since", "seen_at", "reason"),
    [
        (NOW - 10, None, Reason.AGENT_LOST),
        (NOW - 10, NOW - 60, Reason.AGENT_LOST),
        (NOW - 10, NOW - 59, None),
        (NOW - 300, NOW, Reason.LEASE_EXPIRED),
        (NOW - 299, NOW, None),
        (None, NOW, None),
    ],
    ids=["never seen", "silent for a lease", "alive", "too slow", "slow", "unknown since"],
)
def test_planning_is_taken_back_from_workers_that_are_lost_or_too_slow(
    since: float | None, seen_at: float | None, reason: Reason | None
) -> None:
    unit = unit_of({"state": RunState.PLANNING, "plan_worker": "p", "plan_since": since})
    assert rescue_expired(unit, {} if seen_at is None else {"p": seen_at}) == []
    run = unit.runs["run-1"]
    if reason is None:
        assert (run.plan_worker, run.plan_failures) == ("p", 0)
    else:
        assert (run.plan_worker, run.plan_failures, run.detail) == (None, 1, "planned by p")


def test_unclaimed_planning_is_not_taken_back() -> None:
    for run in ({"state": RunState.PLANNING}, {"state": RunState.WAITING, "plan_worker": "p"}):
        unit = unit_of(run)
        rescue_expired(unit, {})
        assert not unit.changes().runs


def test_a_run_out_of_time_is_ended() -> None:
    unit = unit_of({"timeout_at": NOW}, state=JobState.WAITING)
    rescue_expired(unit, {})
    assert unit.runs["run-1"].state is RunState.TIMED_OUT
    assert unit.jobs[KEY.job_id].reason is Reason.RUN_TIMEOUT
