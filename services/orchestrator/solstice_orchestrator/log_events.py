"""Every log event of the orchestrator, once: what happened, and which fields tell more."""

from enum import StrEnum


class LogEvent(StrEnum):
    """A fact in the past tense; `request_id`, `run_id` and `job_id` are the threads that lead through all services."""

    STARTED = "orchestrator.started"
    """At work: worker_id, url, slots, limit, broker, database."""
    DRAIN_BEGUN = "orchestrator.drain_begun"
    """Asked to end: jobs (running), grace_seconds."""
    DRAINED = "orchestrator.drained"
    """Ended in order: handed_back (jobs that did not finish in time)."""

    REQUESTS_KEPT = "requests.kept"
    """Durable, then acked: admitted, duplicates, request_ids."""
    REQUEST_REFUSED = "request.refused"
    """Poison, to the dead letters: reason, detail, correlation_id."""
    INTAKE_HELD = "intake.held"
    """The store cannot keep requests; they stay with the broker: detail, count."""
    INTAKE_RESUMED = "intake.resumed"
    """Requests are kept again: held_seconds."""

    JOB_CLAIMED = "job.claimed"
    """Ours to run: job_id, attempt, run_id, request_id, job, runs_on, waited_seconds."""
    JOB_RELEASED = "job.released"
    """Claimed while we were asked to end, and handed back unstarted: job_id, attempt."""
    CLAIMS_HELD = "claims.held"
    """The store gives no jobs: detail."""
    CANCEL_HEARD = "cancel.heard"
    """Somebody cancelled a job that we run: job_id, attempt."""
    LEASE_LOST = "lease.lost"
    """No longer ours, its processes are killed: job_id, attempt, why."""
    LEASES_NOT_RENEWED = "leases.not_renewed"
    """The store did not take the renewal: detail, held."""
    EXECUTION_BROKE = "execution.broke"
    """A mistake of ours: job_id, attempt, with the traceback."""

    ATTEMPTS_RESCUED = "attempts.rescued"
    """Leases that ran out were ended: attempts."""
    RESCUE_HELD = "rescue.held"
    """The store cannot be swept: detail."""

    OUTBOX_PUBLISHED = "outbox.published"
    """Confirmed by the broker: count, dead_letters."""
    OUTBOX_NOT_PUBLISHED = "outbox.not_published"
    """Not confirmed, will be published again: count, status, detail."""
    OUTBOX_HELD = "outbox.held"
    """Nothing can be told now: detail."""
    OUTBOX_RESUMED = "outbox.resumed"
    """Telling goes on: held_seconds."""
