"""Builds valid values, of which a test changes only what it is about."""

import random
import uuid
from typing import Any

from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import JobSpec, Reason, StepSpec
from solstice_orchestrator.domain.statuses import status_about
from solstice_orchestrator.store.postgresql.finish import SingleJobRun
from solstice_orchestrator.store.records.changes import Job, Run
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.worker.executors.protocol import Execution

SHA = "5f2c1a9be0d34c7788aa90b1c2d3e4f506172839"


def job_request(**changes: Any) -> JobRequestV1:
    """A trusted push to a repository that does not exist, under a new request id."""
    return JobRequestV1.model_validate(
        {
            "schema_version": "jobrequest.v1",
            "request_id": str(uuid.uuid4()),
            "source": "forgejo",
            "repo_url": "https://forge.example/lantern/harbour.git",
            "commit_sha": SHA,
            "submitted_at": "2026-03-01T12:00:00Z",
            "ref": "refs/heads/main",
            "event": "push",
            "repo_full_name": "lantern/harbour",
            "trusted": True,
            **changes,
        },
        strict=False,
    )


def job_cancel(**changes: Any) -> JobCancelV1:
    """A request to cancel pull request 7 of the repository of `job_request`."""
    return JobCancelV1.model_validate(
        {
            "schema_version": "jobcancel.v1",
            "cancel_id": str(uuid.uuid4()),
            "source": "forgejo",
            "repo_url": "https://forge.example/lantern/harbour.git",
            "change_number": 7,
            "submitted_at": "2026-03-01T12:00:00Z",
            "repo_full_name": "lantern/harbour",
            "sender": "ada-brook",
            **changes,
        },
        strict=False,
    )


def job(*runs: str | StepSpec, name: str = "test", **changes: Any) -> JobSpec:
    """A job whose steps run these commands."""
    steps = tuple(
        run if isinstance(run, StepSpec) else StepSpec(name=f"step {number}", run=run)
        for number, run in enumerate(runs, start=1)
    )
    return JobSpec(**{"name": name, "runs_on": "linux", "steps": steps, "timeout_seconds": 60.0, **changes})


def execution(spec: JobSpec, request: JobRequestV1 | None = None, *, attempt: int = 1) -> Execution:
    """The first attempt at a job."""
    return Execution(job_id=str(uuid.uuid4()), attempt=attempt, spec=spec, request=request or job_request())


def run_of_one_job(number: int) -> SingleJobRun:
    """A running run of one job; job ids descend where run ids ascend."""
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
        group_acquired=False,
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
    return SingleJobRun(run, job, status_about(request, run_id=run.run_id))


def moment(now: float, **rules: Any) -> Moment:
    """A moment whose chances are always the same."""
    rng = random.Random(1)
    return Moment(now, StoreRules(new_id=id_source(rng), rng=rng, **rules))
