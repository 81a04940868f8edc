"""Stores which runs wait to be traced, in SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_common.storage.sqlite import insert_many
from solstice_orchestrator.store.records.rows import job_view, run_view
from solstice_orchestrator.store.sqlite.tables.transaction import REQUEST, SqliteTransaction, attempts_of
from solstice_orchestrator.store.traced_runs import READ_STEPS, BegunStep, TracedRun, ended_runs

_ENDED: Final = (
    "FROM run_traces JOIN runs USING (run_id) WHERE taken_until <= ? AND runs.finished_at IS NOT NULL"
)
_LISTED: Final = "IN (SELECT value FROM json_each(?))"
# A mark of a step begins with "$ ", a remark with "! ".
_STEPS: Final = f"""
SELECT job_id, attempt, at, data FROM (
    SELECT chunk.job_id, chunk.attempt, chunk.at, chunk.data,
        row_number() OVER (PARTITION BY job.run_id ORDER BY job.position, chunk.attempt, chunk.sequence) AS number
    FROM jobs AS job JOIN log_marks AS mark ON mark.job_id = job.job_id JOIN log_chunks AS chunk
        ON (chunk.job_id, chunk.attempt, chunk.sequence) = (mark.job_id, mark.attempt, mark.sequence)
    WHERE job.run_id {_LISTED} AND substr(chunk.data, 1, 2) = X'2420'
) WHERE number <= ? ORDER BY number"""  # noqa: S608  made of constants


def insert(connection: sqlite3.Connection, run_ids: Sequence[str]) -> None:
    """Store that these runs are to be traced once they have ended."""
    insert_many(connection, "INSERT INTO run_traces (run_id) VALUES", [(run_id,) for run_id in run_ids])


def wait(connection: sqlite3.Connection, now: float) -> bool:
    """Whether any ended run waits to be traced."""
    return connection.execute(f"SELECT 1 {_ENDED} LIMIT 1", (now,)).fetchone() is not None


def take(transaction: SqliteTransaction, limit: int, leased_seconds: float) -> Sequence[TracedRun]:
    """Return ended runs that wait to be traced, and lease them for so many seconds."""
    execute, now = transaction.connection.execute, transaction.now
    taken = [
        row["run_id"] for row in execute(f"SELECT run_id {_ENDED} ORDER BY run_id LIMIT ?", (now, limit))
    ]
    listed = json.dumps(taken)
    execute(f"UPDATE run_traces SET taken_until = ? WHERE run_id {_LISTED}", (now + leased_seconds, listed))  # noqa: S608  made of constants
    runs = execute(
        f"SELECT *, {REQUEST} FROM runs WHERE run_id {_LISTED} ORDER BY run_id",  # noqa: S608  made of constants
        (listed,),
    ).fetchall()
    jobs = [
        job_view(row)
        for row in execute(f"SELECT * FROM jobs WHERE run_id {_LISTED} ORDER BY position", (listed,))  # noqa: S608  made of constants
    ]
    attempts = attempts_of(transaction, [job.job_id for job in jobs])
    steps = [BegunStep(*row) for row in execute(_STEPS, (listed, READ_STEPS))]
    return ended_runs([(run_view(row), row["request"]) for row in runs], jobs, attempts, steps)


def remove(transaction: SqliteTransaction, run_ids: Sequence[str]) -> None:
    """Remove these runs from those that wait."""
    transaction.connection.execute(
        f"DELETE FROM run_traces WHERE run_id {_LISTED}",  # noqa: S608  made of constants
        (json.dumps(list(run_ids)),),
    )
