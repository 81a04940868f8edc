"""The schemas of the job store; a migration number means the same change in all."""

from collections.abc import Mapping
from typing import Final

TABLES: Final[Mapping[str, str]] = {
    "requests": "The accepted messages, each as it came, with the signature that it had.",
    "request_aliases": "Request ids that meant a run which another request id had made already.",
    "runs": "One row for each accepted request: its state, its planning and its concurrency group.",
    "ref_runs": "Which runs build the same branch or change request, for superseding older ones.",
    "cancels": "Orders to cancel the runs of a change request that came before the request itself.",
    "jobs": "One row for each job of a planned run: its state, its place in the queue and its lease.",
    "attempts": "The attempts of jobs that are over; a running attempt is in the row of its job.",
    "log_chunks": "What attempts printed, in numbered chunks.",
    "log_marks": "Which chunks of a log the orchestrator wrote, and not the job.",
    "service_log_chunks": "What the services of attempts printed, in numbered chunks.",
    "artifacts": "What jobs handed out; the archives are files of ARTIFACT_DIRECTORY.",
    "test_reports": "What the test reports of attempts say, and the result of each test.",
    "outputs": "The outputs of jobs that succeeded, which the jobs that need them get.",
    "outbox": "Statuses and dead letters that the broker has not confirmed yet, in the order of publishing.",
    "outbox_lease": "Its one row says which process publishes the outbox, and until when.",
    "run_traces": "Runs whose spans no OpenTelemetry collector has taken yet.",
    "workers": "Each worker as it last described itself, its quarantine and what an operator ordered it to do.",
    "next_tags": "The virtual time of each repository's next job, for each label and priority class.",
    "clocks": "The virtual time at which a new repository enters the queue of a label and priority class.",
    "start_buckets": "The token buckets that limit how fast jobs of a label or repository may start.",
    "owner_starts": "How many jobs of each owner started lately, for the quotas of owners.",
    "schedules": "The schedules: what each builds, and when.",
    "ticks": "The times at which schedules were due, and what became of each.",
    "schema_migrations": "The migrations that were applied to this database.",
}
"""What each table holds; the page of the database shows it."""
