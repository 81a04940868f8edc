"""The columns that the store reads, and the types of those that it writes. Pure."""

from collections.abc import Mapping
from typing import Final

from solstice_orchestrator.store.records.changes import Attempt, Job, Run

NOW: Final = "extract(epoch FROM clock_timestamp())::double precision"
"""The database's clock, in seconds since the epoch; read when the statement evaluates it, not when the transaction
began.
"""

_IN_REQUESTS: Final[Mapping[str, str]] = {
    "repository": "requests.repository",
    "created_at": "requests.created_at",
    "request": "requests.body AS request",
}
RUN: Final = ", ".join(_IN_REQUESTS.get(name, f"runs.{name}") for name in Run.__struct_fields__)
"""Columns of `runs JOIN requests USING (run_id)`."""
BEGUN_AT: Final = (
    "(SELECT started_at FROM jobs WHERE runs.state = 'waiting' AND runs.job_count = 1"
    " AND jobs.run_id = runs.run_id AND jobs.state = 'running')"
)
"""When a run's only job started, if the run's row does not say so (changes.py, `begun_with`)."""
JOB: Final = ", ".join(f"jobs.{name}" for name in Job.__struct_fields__)
ATTEMPT: Final = ", ".join(Attempt._fields)

_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "created_at",
            "waiting_since",
            "started_at",
            "finished_at",
            "retry_at",
            "lease_until",
            "plan_since",
            "plan_at",
            "timeout_at",
            "requested_at",
            "provisioning_seconds",
            "at",
        ),
        "double precision",
    ),
    **dict.fromkeys(
        (
            "position",
            "priority",
            "sequence",
            "attempt",
            "failures",
            "exit_code",
            "number",
            "plan_attempt",
            "plan_failures",
            "retries",
            "retried",
            "job_count",
            "lead",
            "messages",
        ),
        "integer",
    ),
    **dict.fromkeys(("body", "spec", "data", "group_key", "ref_key"), "bytea"),
    "start_tag": "bigint",
    **dict.fromkeys(("cancel_requested", "group_acquired", "supersede", "rerun"), "boolean"),
}
"""All other columns are text."""


def type_of(column: str) -> str:
    """Return PostgreSQL's name of the column's type."""
    return _TYPES.get(column, "text")
