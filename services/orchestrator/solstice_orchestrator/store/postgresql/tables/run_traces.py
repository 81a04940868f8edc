"""Stores which runs wait to be traced, in PostgreSQL."""

from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, attempts_of
from solstice_orchestrator.store.records.rows import job_view, run_view
from solstice_orchestrator.store.traced_runs import READ_STEPS, BegunStep, TracedRun, ended_runs

WAITING: Final = (
    "SELECT 1 FROM run_traces JOIN runs USING (run_id) WHERE runs.finished_at IS NOT NULL LIMIT 1"
)
_RUN: Final = (
    "SELECT runs.*, requests.created_at, requests.rerun_of, requests.body AS request"
    " FROM runs JOIN requests USING (run_id)"
)
_TAKE: Final = (
    "UPDATE run_traces SET taken_until = $1::float8 + $2::float8 WHERE run_id = ANY(ARRAY("
    "SELECT run_id FROM run_traces JOIN runs USING (run_id) WHERE taken_until <= $1 AND runs.finished_at IS NOT NULL"
    " ORDER BY run_id LIMIT $3 FOR UPDATE OF run_traces SKIP LOCKED)) RETURNING run_id"
)


async def insert(transaction: PostgreSQLTransaction, run_ids: Sequence[str]) -> None:
    """Store that these runs are to be traced once they have ended."""
    await transaction.connection.execute(
        "INSERT INTO run_traces (run_id) SELECT * FROM unnest($1::text[])", list(run_ids)
    )


# A mark of a step begins with "$ ", a remark with "! ".
_STEPS: Final = """
SELECT job_id, attempt, at, data FROM (
    SELECT job.job_id, chunk.attempt, chunk.at, chunk.data,
        row_number() OVER (PARTITION BY job.run_id ORDER BY job.position, chunk.attempt, chunk.sequence) AS number
    FROM jobs AS job JOIN log_chunks AS chunk ON chunk.job_id = job.job_id
    WHERE job.run_id = ANY($1) AND chunk.kind = 'mark' AND substr(chunk.data, 1, 2) = '\\x2420'::bytea
) AS begun WHERE number <= $2 ORDER BY number"""


async def take(transaction: PostgreSQLTransaction, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
    """Return ended runs that wait to be traced, and lease them for so many seconds."""
    fetch, now = transaction.connection.fetch, await transaction.now()
    taken = [row["run_id"] for row in await fetch(_TAKE, now, leased_seconds, limit)]
    if not taken:
        return ()
    runs = await fetch(f"{_RUN} WHERE runs.run_id = ANY($1) ORDER BY runs.run_id", taken)
    jobs = [
        job_view(row)
        for row in await fetch("SELECT * FROM jobs WHERE run_id = ANY($1) ORDER BY position", taken)
    ]
    attempts = await attempts_of(transaction, [job.job_id for job in jobs])
    steps = [BegunStep(*row) for row in await fetch(_STEPS, taken, READ_STEPS)]
    return ended_runs([(run_view(row), row["request"]) for row in runs], jobs, attempts, steps)


async def remove(transaction: PostgreSQLTransaction, run_ids: Sequence[str]) -> None:
    """Remove these runs from those that wait."""
    await transaction.connection.execute("DELETE FROM run_traces WHERE run_id = ANY($1)", list(run_ids))
