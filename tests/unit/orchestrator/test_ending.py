"""Ends in one statement: what is pure in them."""

import random
from unittest.mock import AsyncMock

from solstice_orchestrator.identifiers import id_source
from solstice_orchestrator.jobs import JobState, Outcome, Reason, RunState
from solstice_orchestrator.statuses import status_about
from solstice_orchestrator.store.changes import Job, Run
from solstice_orchestrator.store.moment import Rules
from solstice_orchestrator.store.postgresql.ending import Alone, end_at_once
from solstice_orchestrator.store.protocol import AttemptKey
from tests.builders import job_request

DONE = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


def alone(number: int) -> Alone:
    """A run of one job that runs; jobs' ids fall where runs' ids rise."""
    request = job_request()
    run = Run(
        state=RunState.RUNNING,
        run_id=f"run-{number}",
        repository="river/otter",
        detail="",
        sequence=2,
        created_at=0.0,
        started_at=1.0,
        finished_at=None,
        plan_attempt=0,
        plan_failures=0,
        plan_worker=None,
        plan_since=None,
        plan_at=0.0,
        timeout_at=None,
        group_key=None,
        group_held=False,
        concurrency=None,
        job_count=1,
        request=request.encode(),
    )
    job = Job(
        state=JobState.RUNNING,
        reason=Reason.CLAIMED,
        job_id=f"job-{9 - number}",
        run_id=run.run_id,
        position=0,
        name="test",
        runs_on="linux",
        priority=2,
        repository=run.repository,
        needs="[]",
        created_at=0.0,
        sequence=2,
        attempt=1,
        worker_id="w",
    )
    return Alone(run, job, status_about(request, run_id=run.run_id))


async def test_rows_are_locked_in_one_order_in_whatever_order_jobs_end() -> None:
    rng = random.Random(1)
    database = AsyncMock()
    database.at_once.return_value = [{"now": 5.0}]
    ended = [alone(number) for number in (3, 1, 2)]
    group = [((AttemptKey(job_id=each.job.job_id, number=1), DONE), each) for each in ended]
    rules = Rules(new_id=id_source(rng), rng=rng)
    assert await end_at_once(database, rules, 4.0, group, look=False) == 5.0
    _, *arguments = database.at_once.await_args.args
    assert "run-1\nrun-2\nrun-3" in arguments
    assert "job-8\njob-7\njob-6" in arguments
