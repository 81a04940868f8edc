"""Removes old finished runs from the SQLite store, with everything that belongs to them.

Each step removes a few.
"""

import json
import sqlite3
from typing import Final

from solstice_orchestrator.domain.identifiers import lowest_id
from solstice_orchestrator.store.decisions.supersede import REMEMBERED_SECONDS
from solstice_orchestrator.store.protocol import LOG_CHUNKS_PER_PURGE, Purged
from solstice_orchestrator.store.sqlite.tables import schedule_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

_OLD: Final = "FROM runs WHERE run_id < ? AND +finished_at < ?"
"""Selects old runs by id, which grows with time: the time of the end has no index, and a run that ended early began
earlier.
"""
_LISTED: Final = "(SELECT value FROM json_each(?))"


def purgeable(connection: sqlite3.Connection, before: float) -> int:
    """Count the runs that ended before that moment."""
    row = connection.execute(f"SELECT count(*) {_OLD}", (lowest_id(before), before)).fetchone()
    return int(row[0])


def purge(transaction: SqliteTransaction, older_than_seconds: float, limit: int) -> Purged:
    """Remove the logs of the oldest runs, then the runs."""
    execute, before = transaction.connection.execute, transaction.now - older_than_seconds
    schedule_table.forget_ticks(transaction.connection, before)
    execute("DELETE FROM cancels WHERE stored_at < ?", (before,))
    execute(
        "DELETE FROM ref_runs WHERE run_id < ?"
        " AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = ref_runs.run_id AND finished_at IS NULL)",
        (lowest_id(min(before, transaction.now - REMEMBERED_SECONDS)),),
    )
    old = [
        row["run_id"]
        for row in execute(
            f"SELECT run_id {_OLD} ORDER BY run_id LIMIT ?", (lowest_id(before), before, limit)
        )
    ]
    if not old:
        return Purged(runs=0, more=False)
    runs = json.dumps(old)
    jobs = f"(SELECT job_id FROM jobs WHERE run_id IN {_LISTED})"  # noqa: S608  made of constants
    chunks = execute(
        f"DELETE FROM log_chunks WHERE rowid IN (SELECT rowid FROM log_chunks WHERE job_id IN {jobs} LIMIT ?)",  # noqa: S608  made of constants
        (runs, LOG_CHUNKS_PER_PURGE),
    ).rowcount
    if chunks == LOG_CHUNKS_PER_PURGE:
        return Purged(runs=0, more=True)
    execute(f"DELETE FROM attempts WHERE job_id IN {jobs}", (runs,))  # noqa: S608  made of constants
    for table in ("jobs", "request_aliases", "run_traces"):
        execute(f"DELETE FROM {table} WHERE run_id IN {_LISTED}", (runs,))  # noqa: S608  made of constants
    execute(f"DELETE FROM requests WHERE age IN (SELECT age FROM runs WHERE run_id IN {_LISTED})", (runs,))  # noqa: S608  made of constants
    execute(f"DELETE FROM runs WHERE run_id IN {_LISTED}", (runs,))  # noqa: S608  made of constants
    return Purged(runs=len(old), more=len(old) == limit)
