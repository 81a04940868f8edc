"""Cancels, prioritises and reruns jobs and runs, and enforces run time limits. Pure."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from msgspec import structs

from solstice_common.messages import JobRequestV1, Priority, stored_request
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain import reruns
from solstice_orchestrator.domain.jobs import JobCondition, Outcome, Reason
from solstice_orchestrator.domain.needs import DependencyNode
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.domain.statuses import storable
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.records.changes import Job, Run


class Rerun(NamedTuple):
    """A request to admit because a person asked for a run again."""

    request: JobRequestV1
    rerun_of: str
    """Id of that run."""
    only_jobs: str | None
    """JSON: the names of the jobs to repeat; None for all."""


def cancel_job(unit: UnitOfWork, job_id: str, detail: str = "") -> None:
    """End one job, or ask its holder to; the detail names the requester."""
    job = unit.jobs.get(job_id)
    if job is not None and not job.state.final:
        end_job(unit, job, Reason.CANCEL_REQUESTED, detail)
        unit.settle([job.run_id])


def prioritise(unit: UnitOfWork, job_id: str, priority: Priority) -> None:
    """Move an unfinished job to another priority class, as its newest job."""
    job = unit.jobs.get(job_id)
    if job is not None and not job.state.final and job.priority != rank(priority):
        unit.change_class(job_id, rank(priority))


def cancel_run(unit: UnitOfWork, run_id: str, detail: str = "") -> None:
    """End every job of a run, or its planning, like `cancel_job`."""
    end_run(unit, run_id, Reason.CANCEL_REQUESTED, detail)


def rerun(unit: UnitOfWork, run_id: str) -> Rerun | None:
    """Run all jobs of a run again. None when the run does not exist."""
    run = unit.runs.get(run_id)
    return None if run is None else _rerun_of(unit, run, None)


def rerun_failed(unit: UnitOfWork, run_id: str) -> Rerun | RerunRefusal | None:
    """Run the failed jobs of a run again, with their dependents.

    None when the run does not exist.
    """
    return _rerun_some(unit, run_id, reruns.failed_jobs)


def rerun_job(unit: UnitOfWork, job_id: str) -> Rerun | RerunRefusal | None:
    """Run a job again, with those that `reruns` adds to it.

    None when the job does not exist.
    """
    job = unit.jobs.get(job_id)
    if job is None:
        return None
    return _rerun_some(unit, job.run_id, partial(reruns.job_with_dependents, job.name))


def time_out(unit: UnitOfWork) -> None:
    """End what is left of the runs that exceeded their time limit."""
    for run in list(unit.runs.values()):
        if run.timeout_at is not None and run.timeout_at <= unit.now and not _awaits(unit, run.run_id):
            end_run(unit, run.run_id, Reason.RUN_TIMEOUT)
            # Its running jobs were asked to end, and nothing else starts: the limit is used up.
            unit.change_run(run.run_id, timeout_at=None)


def _awaits(unit: UnitOfWork, run_id: str) -> bool:
    """Return whether the run waits for approval: its time starts with that."""
    return any(job.state is JobState.APPROVAL for job in unit.jobs_of(run_id))


def end_run(unit: UnitOfWork, run_id: str, reason: Reason, detail: str = "") -> None:
    """End a run: its planning, or every job that has not ended.

    The reason is CANCEL_REQUESTED, SUPERSEDED or RUN_TIMEOUT.
    """
    run = unit.runs.get(run_id)
    if run is None or run.state.final:
        return
    if run.state in {RunState.DELAYED, RunState.PLANNING}:
        unit.move_run(run_id, RunState(_end_of(reason).value), reason=reason, detail=detail)
        return
    for job in unit.jobs_of(run_id):
        if not job.state.final:
            end_job(unit, job, reason, detail)
    unit.settle([run_id])


def end_job(unit: UnitOfWork, job: Job, reason: Reason, detail: str = "") -> None:
    """End an unfinished job, or ask its holder to; the first request counts.

    The caller settles its run.
    """
    if job.state is not JobState.RUNNING:
        unit.move(structs.replace(job, retry_at=None), _end_of(reason), reason, detail)
    elif not job.cancel_requested:
        unit.change(job.job_id, cancel_requested=True, ending=reason.value, ending_detail=storable(detail))


def as_requested(job: Job | None, outcome: Outcome) -> Outcome:
    """Return `outcome` with the requested end's reason, if the attempt ended for that."""
    if job is None or not job.cancel_requested or outcome.state is not JobState.CANCELLED:
        return outcome
    return requested_end(job, outcome)


def requested_end(job: Job, outcome: Outcome) -> Outcome:
    """Return how a job ends whose end was asked for, once its attempt is over."""
    reason = Reason(job.ending) if job.ending else Reason.CANCEL_REQUESTED
    return replace(outcome, state=_end_of(reason), reason=reason, detail=job.ending_detail)


def _end_of(reason: Reason) -> JobState:
    return JobState.TIMED_OUT if reason is Reason.RUN_TIMEOUT else JobState.CANCELLED


def _rerun_some(
    unit: UnitOfWork,
    run_id: str,
    choose: Callable[[Mapping[str, DependencyNode]], frozenset[str] | RerunRefusal | None],
) -> Rerun | RerunRefusal | None:
    run = unit.runs.get(run_id)
    if run is None:
        return None
    if not run.state.final:
        return RerunRefusal.NOT_ENDED
    chosen = choose(
        {
            job.name: DependencyNode(
                state=job.state, needs=tuple(json.loads(job.needs)), condition=JobCondition(job.condition)
            )
            for job in unit.jobs_of(run_id)
        }
    )
    return chosen if isinstance(chosen, RerunRefusal) else _rerun_of(unit, run, chosen)


def _rerun_of(unit: UnitOfWork, run: Run, only: frozenset[str] | None) -> Rerun:
    """Return the same request as a new one, submitted now.

    It has a new request id, without the old idempotency key and delay.
    """
    # Not with orjson: it would round large integers of unknown fields.
    fields = json.loads(run.request)
    for name in ("idempotency_key", "not_before"):
        fields.pop(name, None)
    fields["request_id"] = str(uuid.UUID(int=unit.moment.rules.rng.getrandbits(128), version=4))
    fields["submitted_at"] = unit.moment.stamp
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return Rerun(stored_request(body), run.run_id, None if only is None else json.dumps(sorted(only)))
