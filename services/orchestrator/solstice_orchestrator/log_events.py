"""Every log event of the orchestrator, once: what happened, and with which fields."""

from enum import StrEnum


class LogEvent(StrEnum):
    """A fact in the past tense.

    Search for `request_id`, `run_id` or `job_id` to follow one run through all services.
    """

    STARTED = "orchestrator.started"
    """The orchestrator has started: worker_id, name, state, url, slots, limit, broker, database."""
    WORKER_STATE_CHANGED = "worker.state_changed"
    """The worker's state changed, by an order or by failures in a row: worker_id, state, was,
    quarantined_until.
    """
    WORKER_REGISTERED_AGAIN = "worker.registered_again"
    """The store had removed this worker, which has registered again: worker_id, state."""
    END_NOT_STORED = "worker.end_not_stored"
    """The store did not record that this worker ended; it will show it as lost: detail."""
    DRAIN_ORDERED = "orchestrator.drain_ordered"
    """A person drains this worker, which ends when its jobs have ended: jobs (running)."""
    DRAIN_BEGUN = "orchestrator.drain_begun"
    """The orchestrator was asked to end: jobs (running), grace_seconds."""
    DRAINED = "orchestrator.drained"
    """The orchestrator has ended in order: handed_back (jobs that did not finish in time)."""

    REQUESTS_STORED = "requests.stored"
    """Requests were stored, then acked: admitted, duplicates, request_ids."""
    REQUEST_REFUSED = "request.refused"
    """A message was refused, and became a dead letter: reason, detail, correlation_id."""
    REQUEST_HANDLING_CRASHED = "request.handling_crashed"
    """An internal error; the message becomes a dead letter: request_id (if it could be read), with the traceback."""
    CANCEL_STORED = "cancel.stored"
    """A cancel was stored, then acked: cancel_id, repository, change_number, sender, run_ids, reason (runs_ended, nothing_runs,
    unknown_change). Earlier requests that come later end as well."""
    CANCEL_REFUSED = "cancel.refused"
    """A message was refused, and became a dead letter: reason, detail, correlation_id."""
    CANCEL_HANDLING_CRASHED = "cancel.handling_crashed"
    """An internal error; the message becomes a dead letter: cancel_id (if it could be read), with the traceback."""
    STORE_AWAITED = "store.awaited"
    """The orchestrator waits for its database: detail."""

    INTAKE_FULL = "intake.full"
    """The store has enough waiting work; new requests stay with the broker: backlog, most (MAX_BACKLOG)."""
    INTAKE_HAS_ROOM = "intake.has_room"
    """A fifth of the backlog is done, and requests are taken again: backlog, most."""
    LEFT_REQUESTS_INTAKE_BEGUN = "left_requests.intake_begun"
    """AMQP_PRIORITIES is one here, and requests are in the queue of a class; they are taken until it is empty: queue, ready."""
    LEFT_REQUESTS_MISMATCHED = "left_requests.mismatched"
    """That queue has other arguments than this orchestrator would declare, so what is in it stays there: queue, detail."""
    BACKLOG_UNKNOWN = "backlog.unknown"
    """The store cannot count the waiting work; intake stays as it was: detail."""

    STARTS_REFUSED = "starts.refused"
    """This machine lacks a resource, and starts no jobs: resource, detail."""
    STARTS_RESUMED = "starts.resumed"
    """This machine starts jobs again: resource (of which it was short)."""
    SLOTS_SHRUNK = "slots.shrunk"
    """The worker runs fewer jobs at once for a while, after infrastructure failures or under load: slots,
    was, limit, cause.
    """
    SLOTS_GROWN = "slots.grown"
    """The worker runs one more job at once again: slots, was, limit."""
    PRESSURE_NOT_STORED = "worker.pressure_not_stored"
    """The store did not record the pressure of this worker, which is reported again: detail."""

    JOB_CLAIMED = "job.claimed"
    """This worker claimed a job: job_id, attempt, run_id, request_id, job, runs_on, waited_seconds."""
    JOB_RELEASED = "job.released"
    """A job was claimed while we were asked to end, and handed back unstarted: job_id, attempt."""
    CLAIMS_PAUSED = "claims.paused"
    """The store gives no jobs: detail."""
    CANCEL_RECEIVED = "cancel.received"
    """A job that this worker runs was cancelled: job_id, attempt."""
    LEASE_LOST = "lease.lost"
    """An attempt is no longer this worker's, and its processes are killed: job_id, attempt, detail."""
    LEASES_NOT_RENEWED = "leases.not_renewed"
    """The store did not renew the leases: detail, leases."""
    EXECUTION_CRASHED = "execution.crashed"
    """An internal error: job_id, attempt, with the traceback."""

    ATTEMPTS_RESCUED = "attempts.rescued"
    """Attempts whose leases ran out were ended: attempts."""
    RESCUE_PAUSED = "rescue.paused"
    """The store cannot be swept: detail."""

    FORECASTS_PAUSED = "forecasts.paused"
    """The store cannot be read to check forecasts: detail."""

    RUNS_PURGED = "runs.purged"
    """Old runs were removed: runs (how many), older_than_days."""
    RETENTION_PAUSED = "retention.paused"
    """Old runs cannot be removed now: detail."""

    OUTBOX_PUBLISHED = "outbox.published"
    """The broker confirmed messages of the outbox: count, dead_letters."""
    OUTBOX_NOT_PUBLISHED = "outbox.not_published"
    """The broker did not confirm messages, which are published again: count, status, detail."""
    OUTBOX_PAUSED = "outbox.paused"
    """No statuses are published for now: detail."""
    OUTBOX_RESUMED = "outbox.resumed"
    """Statuses are published again: paused_seconds."""

    RUN_PLANNED = "run.planned"
    """The run has jobs: run_id, request_id, jobs, stored."""
    RUN_NOT_PLANNED = "run.not_planned"
    """The run has no jobs: run_id, request_id, reason, detail, stored."""
    PLANNING_PAUSED = "planning.paused"
    """The store gives no runs to plan, or accepts no plans: detail, run_id if it is about one."""
    PLANNING_CRASHED = "planning.crashed"
    """An internal error: request_id, run_id if it is about one, with the traceback."""

    GIT_UNSUPPORTED = "git.unsupported"
    """This machine's git is missing, or too old for the settings; logged once at start: version, detail."""
    CREDENTIAL_UNUSABLE = "git.credential_unusable"
    """A credential of GIT_CREDENTIALS cannot be read, and its repositories are not fetched: detail."""
    GIT_HOST_UNREACHABLE = "git_host.unreachable"
    """A git host gave no answer, and is not called for a while: host, failures, next_try_seconds, detail."""
    GIT_HOST_ANSWERED = "git_host.answered"
    """A git host answers again: host."""

    ANCESTRY_UNKNOWN = "ancestry.unknown"
    """The repository did not say which of two pushes came first; the one that arrived last counts:
    request_id, detail.
    """

    ATTEMPT_STARTED = "attempt.started"
    """An attempt was handed to the executor: job_id, attempt, run_id, job, runs_on."""
    SECRET_UNUSABLE = "secret.unusable"  # noqa: S105  an event, not a secret
    """A job failed because this worker cannot read one of its secrets: job_id, attempt, repository, detail."""
    ATTEMPT_FINISHED = "attempt.finished"
    """The end of an attempt was recorded: job_id, attempt, run_id, state, reason, exit_code, step, detail."""
    ATTEMPT_HANDED_BACK = "attempt.handed_back"
    """An attempt was ended and handed back because we end: job_id, attempt, run_id, state, reason, stored."""
    ATTEMPT_LOST = "attempt.lost"
    """An attempt was no longer this worker's when it ended, and nothing was written: job_id, attempt, run_id, detail."""
    ATTEMPT_UNRECORDED = "attempt.unrecorded"
    """The store was unavailable for too long to record an end; rescue runs the job again: job_id, attempt,
    run_id, state, reason, detail.
    """
    SUPERVISION_FAILED = "execution.supervision_failed"
    """A running job could not be supervised; it counts as its own failure: job_id, attempt, detail."""
    EXECUTOR_CRASHED = "executor.crashed"
    """An executor raised an error, which its interface forbids: job_id, attempt, with the traceback."""

    QUEUE_REPORTS_PAUSED = "queue_reports.paused"
    """Statuses of waiting jobs are not updated for now: detail."""

    TICK_FIRED = "tick.fired"
    """A schedule's tick became a run: schedule, tick_at, run_id, reason, late_seconds."""
    TICK_NOT_FIRED = "tick.not_fired"
    """A schedule's tick became no run, and will not: schedule, tick_at, state, reason, detail, ticks (how many were missed)."""
    TICK_DELAYED = "tick.delayed"
    """The forge did not answer about a tick, and is asked again: schedule, tick_at, detail."""
    TICK_LOST = "tick.lost"
    """Another orchestrator fires the tick, or it is no longer due; nothing was written: schedule, tick_at."""
    SCHEDULES_PAUSED = "schedules.paused"
    """The store gives no ticks: detail."""
    TICK_FIRING_CRASHED = "tick.firing_crashed"
    """An internal error: schedule, tick_at, with the traceback."""

    WORKSPACE_SWEPT = "workspace.swept"
    """A killed orchestrator's workspaces were removed: directory, killed (processes)."""
    WORKSPACE_NOT_REMOVED = "workspace.not_removed"
    """A workspace could not be removed: directory, detail (why)."""
    PROCESSES_NOT_ENDED = "processes.not_ended"
    """Processes that do not end when they are killed: directory (or control group), count, where it is known."""
    CONTROL_GROUPS_USED = "control_groups.used"
    """The processes of each job are in a control group of their own: directory."""
    CONTROL_GROUPS_UNUSED = "control_groups.unused"
    """Jobs have no control groups here, so only their supervisors end them: detail."""

    WEB_REQUEST_FAILED = "web.request_failed"
    """An internal error during an HTTP request: path, method, with the traceback. The answer was 500."""
