"""An approved run gets its time limit, its group, and jobs that may start."""

import json
import random

from msgspec.structs import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Concurrency, Reason
from solstice_orchestrator.store.decisions.plan import approve_run
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.records.rows import encode_concurrency
from tests.builders import run_of_one_job

NOW = 1000.0
GROUP = json.dumps(encode_concurrency(Concurrency(group="deploy")))


def unit_of(*states: JobState, concurrency: str | None = None) -> UnitOfWork:
    """A run of jobs created 300 seconds ago; each but the first needs the first."""
    known = run_of_one_job(1)
    run = replace(
        known.run,
        state=RunState.WAITING,
        timeout_at=NOW + 60.0,
        job_count=len(states),
        concurrency=concurrency,
    )
    jobs = [
        replace(
            known.job,
            state=state,
            job_id=f"job-{position}",
            position=position,
            name=f"step-{position}",
            created_at=NOW - 300.0,
            needs='["step-0"]' if position else "[]",
        )
        for position, state in enumerate(states)
    ]
    rng = random.Random(1)
    return UnitOfWork(Moment(NOW, StoreRules(new_id=id_source(rng), rng=rng)), [run], jobs)


def jobs_after(unit: UnitOfWork) -> list[tuple[JobState, Reason]]:
    return [(job.state, job.reason) for job in unit.jobs_of("run-1")]


def test_jobs_without_needs_wait_for_a_slot_and_the_others_for_their_needs() -> None:
    unit = unit_of(JobState.APPROVAL, JobState.APPROVAL)
    approve_run(unit, "run-1")
    assert jobs_after(unit) == [
        (JobState.WAITING, Reason.APPROVED),
        (JobState.BLOCKED, Reason.APPROVED),
    ]


def test_the_time_limit_begins_with_the_approval() -> None:
    unit = unit_of(JobState.APPROVAL)
    approve_run(unit, "run-1")
    assert unit.runs["run-1"].timeout_at == NOW + 60.0 + 300.0


def test_its_group_is_asked_for_only_now() -> None:
    unit = unit_of(JobState.APPROVAL, concurrency=GROUP)
    assert unit.runs["run-1"].group_key is None
    approve_run(unit, "run-1")
    group = unit.runs["run-1"].group_key
    assert group is not None
    assert jobs_after(unit) == [(JobState.BLOCKED, Reason.CONCURRENCY_GROUP)]
    assert unit.changes().groups == [group]


def test_a_job_that_ended_before_stays_ended() -> None:
    unit = unit_of(JobState.CANCELLED, JobState.APPROVAL)
    approve_run(unit, "run-1")
    assert jobs_after(unit)[0] == (JobState.CANCELLED, Reason.CLAIMED)
    assert jobs_after(unit)[1][0] is JobState.SKIPPED


def test_nothing_changes_when_nothing_waits_for_approval() -> None:
    unit = unit_of(JobState.WAITING)
    approve_run(unit, "run-1")
    approve_run(unit, "run-2")
    changes = unit.changes()
    assert not changes.runs
    assert not changes.jobs
