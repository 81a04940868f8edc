"""Removes old finished runs from the PostgreSQL store, with everything that belongs to them.

Each step removes a few.
"""

from typing import Final

from solstice_orchestrator.domain.identifiers import lowest_id
from solstice_orchestrator.store.decisions.supersede import REMEMBERED_SECONDS
from solstice_orchestrator.store.postgresql.tables import schedule_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.protocol import LOG_CHUNKS_PER_PURGE, Purged

_OLD: Final = "FROM runs WHERE run_id < $1 AND finished_at < $2"
"""Selects old runs by id, which grows with time: the time of the end has no index, and a run that ended early began
earlier.
"""


async def purgeable(transaction: PostgreSQLTransaction, older_than_seconds: float) -> int:
    """Count the runs that ended more than this long ago."""
    before = await transaction.now() - older_than_seconds
    return int(await transaction.connection.fetchval(f"SELECT count(*) {_OLD}", lowest_id(before), before))


async def purge(transaction: PostgreSQLTransaction, older_than_seconds: float, limit: int) -> Purged:
    """Remove the logs of the oldest runs, then the runs."""
    connection = transaction.connection
    now = await transaction.now()
    before = now - older_than_seconds
    await schedule_table.forget_ticks(connection, before)
    await connection.execute("DELETE FROM cancels WHERE stored_at < $1", before)
    await connection.execute(
        "DELETE FROM ref_runs WHERE run_id < $1"
        " AND NOT EXISTS (SELECT FROM runs WHERE runs.run_id = ref_runs.run_id AND finished_at IS NULL)",
        lowest_id(min(before, now - REMEMBERED_SECONDS)),
    )
    old = [
        row["run_id"]
        for row in await connection.fetch(
            # Two purges at the same time take different runs.
            f"SELECT run_id {_OLD} ORDER BY run_id LIMIT $3 FOR UPDATE SKIP LOCKED",
            lowest_id(before),
            before,
            limit,
        )
    ]
    if not old:
        return Purged(runs=0, more=False)
    jobs = [
        row["job_id"] for row in await connection.fetch("SELECT job_id FROM jobs WHERE run_id = ANY($1)", old)
    ]
    chunks = await connection.fetchval(
        "WITH gone AS (DELETE FROM log_chunks WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM log_chunks WHERE job_id = ANY($1) LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
        jobs,
        LOG_CHUNKS_PER_PURGE,
    )
    if chunks == LOG_CHUNKS_PER_PURGE:
        return Purged(runs=0, more=True)
    await connection.execute("DELETE FROM attempts WHERE job_id = ANY($1)", jobs)
    for table in ("jobs", "request_aliases", "run_traces", "requests", "runs"):
        await connection.execute(f"DELETE FROM {table} WHERE run_id = ANY($1)", old)  # noqa: S608  made of constants
    return Purged(runs=len(old), more=len(old) == limit)
