"""The statuses that moves of jobs and runs make."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.statuses import RUN_CONTEXT, Status, context_of
from solstice_orchestrator.store.outbox.announcements import RunMoved, StateChange, statuses
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from tests.builders import run_of_one_job

RUNNING_JOB = run_of_one_job(1)


def announced(*moves: StateChange, public_url: str | None = None) -> list[Status]:
    rng = random.Random(1)
    moment = Moment(10.0, StoreRules(new_id=id_source(rng), rng=rng, public_url=public_url))
    return list(statuses(moment, {RUNNING_JOB.run.run_id: RUNNING_JOB.subject}, moves))


@pytest.mark.parametrize("state", sorted(JobState))
def test_only_ended_attempts_have_an_exit_code(state: JobState) -> None:
    (status,) = announced(replace(RUNNING_JOB.job, state=state, exit_code=7))
    assert status.exit_code == (7 if state in FINAL or state is JobState.BACKOFF else None)


def test_a_job_reports_itself_and_a_run_of_no_job() -> None:
    run = replace(RUNNING_JOB.run, state=RunState.SUCCEEDED, sequence=5)
    moved = RunMoved(run, Reason.COMPLETED, [JobState.SUCCEEDED])
    of_job, of_run = announced(replace(RUNNING_JOB.job, sequence=4), moved, public_url="https://ci.example")
    assert (of_job.context, of_job.sequence, of_job.state) == (context_of("test"), 4, JobState.RUNNING)
    assert (of_job.job_id, of_job.job_name, of_job.attempt) == (RUNNING_JOB.job.job_id, "test", 1)
    assert of_job.target_url == f"https://ci.example/jobs/{RUNNING_JOB.job.job_id}"
    assert (of_run.context, of_run.sequence, of_run.state) == (RUN_CONTEXT, 5, RunState.SUCCEEDED)
    assert (of_run.job_id, of_run.job_name, of_run.attempt, of_run.reason) == (
        None,
        None,
        None,
        Reason.COMPLETED,
    )
    assert of_run.target_url == f"https://ci.example/runs/{run.run_id}"
    assert of_job.occurred_at == of_run.occurred_at == "1970-01-01T00:00:10.000Z"
    assert of_job.status_id != of_run.status_id


def test_without_a_public_url_no_page_is_named_and_before_the_first_attempt_no_attempt() -> None:
    (status,) = announced(replace(RUNNING_JOB.job, state=JobState.WAITING, attempt=0))
    assert (status.target_url, status.attempt) == (None, None)


@pytest.mark.parametrize(
    ("run", "jobs", "words"),
    [
        ({"state": RunState.PLANNING}, [], "Accepted; its workflow will be read next"),
        ({"state": RunState.SUCCEEDED}, [JobState.SUCCEEDED] * 2, "2 jobs: 2 succeeded"),
        ({"state": RunState.ERRORED, "detail": "no workflow"}, [], "Errored: no workflow"),
    ],
    ids=["new", "ended", "no workflow"],
)
def test_a_run_says_what_became_of_it(run: dict[str, Any], jobs: list[JobState], words: str) -> None:
    (status,) = announced(RunMoved(replace(RUNNING_JOB.run, **run), None, jobs))
    assert status.description == words
