"""Ends attempts, by their holder or by rescue, and decides what follows. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from msgspec import structs

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, OWN_FAILURES, UNCOUNTED, Outcome, Reason
from solstice_orchestrator.domain.statuses import detail_of
from solstice_orchestrator.store.decisions.steer import as_requested, requested_end
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey, LastChunks
from solstice_orchestrator.store.records.changes import Attempt, Job
from solstice_orchestrator.store.records.rows import log_rows


class AttemptEnd(NamedTuple):
    """How an attempt ended, and the ends of its logs."""

    key: AttemptKey
    outcome: Outcome
    logs: Sequence[LastChunks] = ()


BATCHES_AT_ONCE: Final = 2
"""While one batch of ends is written, the next is decided."""

# Named here as in transitions.py.
_RUNNING: Final = JobState.RUNNING
_RELEASED: Final = Reason.RELEASED


def finish_attempts(
    unit: UnitOfWork,
    ends: Sequence[AttemptEnd],
    past: Mapping[AttemptKey, Attempt],
    going_on: Collection[str] = (),
) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before.

    `past`: the ended attempts among those that are not current (`ended_attempts`) any more. `going_on`: runs that these
    ends do not change, because another of their jobs runs and none is blocked; their other jobs need not be loaded.
    """
    known, answers, settled = dict(past), [], dict[str, None]()
    for key, outcome, logs in ends:
        job = running_job(unit, key)
        if job is None:
            answers.append(_ended_so(known.get(key), as_requested(unit.jobs.get(key.job_id), outcome)))
            continue
        for log in logs:
            unit.add_log(log_rows(key.job_id, key.number, log.chunks, log.service))
        known[key] = end_attempt(unit, job, outcome)
        settled[job.run_id] = None
        answers.append(True)
    unit.settle([run_id for run_id in settled if run_id not in going_on])
    return answers


def by_key(past: Iterable[Attempt]) -> dict[AttemptKey, Attempt]:
    """Return ended attempts by what identifies them."""
    return {AttemptKey(job_id=attempt.job_id, number=attempt.number): attempt for attempt in past}


def ended_attempts(unit: UnitOfWork, ends: Sequence[AttemptEnd]) -> Sequence[AttemptKey]:
    """Return the attempts that are not running here: the caller looks up their past."""
    return [end.key for end in ends if running_job(unit, end.key) is None]


def running_job(unit: UnitOfWork, key: AttemptKey) -> Job | None:
    """Return the job when this is its running attempt."""
    job = unit.jobs.get(key.job_id)
    is_current = job is not None and job.state is _RUNNING and job.attempt == key.number
    return job if is_current else None


def end_attempt(unit: UnitOfWork, job: Job, outcome: Outcome) -> Attempt:
    """Close the running attempt and move its job to what follows.

    The caller settles the run.
    """
    outcome = as_requested(job, outcome)
    if job.image and not outcome.image:
        # It was recorded when the attempt began, and what interrupted that does not know it.
        outcome = replace(outcome, image=job.image)
    if outcome.reason is _RELEASED:
        outcome = _if_in_time(unit, job, outcome)
    attempt = unit.close(job, outcome)
    detail = attempt.detail
    failed_by_us = outcome.reason in INFRASTRUCTURE
    if job.cancel_requested and (failed_by_us or outcome.reason is _RELEASED):
        # Its end was asked for, and it has ended: nothing is tried again.
        outcome = requested_end(job, outcome)
        failed_by_us = False
        detail = detail_of(outcome)
    left = structs.replace(
        job,
        lease_until=None,
        exit_code=outcome.exit_code,
        step=outcome.step,
        image=outcome.image,
        provisioning_seconds=outcome.provisioning_seconds,
    )
    if outcome.reason is _RELEASED:
        unit.move(structs.replace(left, worker_id=None), JobState.WAITING, _RELEASED)
    elif failed_by_us:
        _failed_by_us(unit, left, outcome.reason, detail)
    elif outcome.reason in OWN_FAILURES and job.retried < job.retries and not job.cancel_requested:
        _failed_by_itself(unit, left, detail)
    else:
        unit.move(left, outcome.state, outcome.reason, detail)
        if outcome.state is JobState.SUCCEEDED and (outcome.outputs or outcome.artifacts):
            unit.add_results(job, outcome)
    return attempt


def _if_in_time(unit: UnitOfWork, job: Job, outcome: Outcome) -> Outcome:
    """Count a release after the lease ran out as LEASE_EXPIRED, as a rescue would.

    Otherwise a job that keeps its holder from reaching the store would begin again and again.
    """
    if job.lease_until is None or job.lease_until > unit.now:
        return outcome
    return replace(
        outcome,
        state=JobState.ERRORED,
        reason=Reason.LEASE_EXPIRED,
        detail=f"handed back by {job.worker_id} after its lease had run out",
    )


def _failed_by_itself(unit: UnitOfWork, job: Job, detail: str) -> None:
    """Retry the job at once, from the retries that its author allowed."""
    retried = job.retried + 1
    again = structs.replace(job, retried=retried, worker_id=None, exit_code=None, step=None)
    unit.move(again, JobState.WAITING, Reason.RETRYING, f"retrying {retried} of {job.retries}: {detail}")


def _failed_by_us(unit: UnitOfWork, job: Job, reason: Reason, detail: str) -> None:
    """Retry the job after a backoff, or end it when its budget is spent."""
    rng, policy = unit.moment.rules.rng, unit.moment.rules.retries.of(job.runs_on)
    wait: float | None
    if reason in UNCOUNTED:
        failures, wait = job.failures, policy.uncounted_wait(job.attempt, rng)
    else:
        failures = job.failures + 1
        wait = policy.next_retry(failures, reason, rng)
    if wait is None:
        unit.move(structs.replace(job, failures=failures), JobState.ERRORED, reason, detail)
    else:
        later = structs.replace(job, failures=failures, retry_at=unit.now + wait, worker_id=None)
        unit.move(later, JobState.BACKOFF, reason, detail)


def _ended_so(past: Attempt | None, outcome: Outcome) -> bool:
    return past is not None and (past.state, past.reason, past.exit_code, past.step, past.detail) == (
        outcome.state,
        outcome.reason,
        outcome.exit_code,
        outcome.step,
        detail_of(outcome),
    )
