"""Takes back attempts and planning whose leases ran out. Pure."""

from collections.abc import Mapping, Sequence

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store.decisions.finish import end_attempt
from solstice_orchestrator.store.decisions.plan import plan_failed
from solstice_orchestrator.store.decisions.steer import time_out
from solstice_orchestrator.store.decisions.transitions import UnitOfWork
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.changes import Job


def rescue_expired(unit: UnitOfWork, seen: Mapping[str, float]) -> Sequence[AttemptKey]:
    """End attempts whose leases ran out and runs out of time; take back planning.

    Planning is taken back from workers that are lost or too slow. `seen`: the last heartbeat of each worker.
    """
    time_out(unit)
    lease_seconds = unit.moment.rules.lease_seconds
    expired = [job for job in unit.jobs.values() if _expired(job, unit.now)]
    for job in expired:
        worker = job.worker_id or ""
        outcome = Outcome(
            state=JobState.ERRORED,
            # A living worker renews twice in a lease: silence for half a lease, besides a lease that ran out, means it
            # is lost.
            # Not a whole lease: a lease claimed during a renewal ends a moment before the heartbeat does.
            reason=_why(seen.get(worker), unit.now - lease_seconds / 2),
            detail=f"held by {worker}",
        )
        end_attempt(unit, job, outcome)
    unit.settle(dict.fromkeys(job.run_id for job in expired))
    slow_since = unit.now - unit.moment.rules.planning_seconds
    for run in list(unit.runs.values()):
        if run.state is RunState.PLANNING and run.plan_worker is not None:
            reason = _why(seen.get(run.plan_worker), unit.now - lease_seconds)
            if reason is Reason.AGENT_LOST or (run.plan_since is not None and run.plan_since <= slow_since):
                plan_failed(unit, run.run_id, reason, f"planned by {run.plan_worker}")
    return [AttemptKey(job_id=job.job_id, number=job.attempt) for job in expired]


def _expired(job: Job, now: float) -> bool:
    return job.state is JobState.RUNNING and job.lease_until is not None and job.lease_until <= now


def _why(seen_at: float | None, silent_since: float) -> Reason:
    gone = seen_at is None or seen_at <= silent_since
    return Reason.AGENT_LOST if gone else Reason.LEASE_EXPIRED
