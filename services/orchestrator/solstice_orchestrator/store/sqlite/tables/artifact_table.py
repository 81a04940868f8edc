"""Stores which artifacts are kept, in SQLite."""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from solstice_orchestrator.store.artifact_records import (
    MOST_REPEATED,
    ArtifactAnswer,
    ArtifactRecord,
    ArtifactView,
    NeededJob,
)
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.artifact_rows import artifact_view, needed_jobs, read_outputs
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

_OTHER_BYTES: Final = (
    "SELECT coalesce(sum(size), 0) FROM (SELECT DISTINCT digest, size FROM artifacts"
    " WHERE digest <> ? AND NOT (job_id = ? AND name = ?))"
)


def record(
    transaction: SqliteTransaction, key: AttemptKey, artifact: ArtifactRecord, most_bytes: int
) -> ArtifactAnswer:
    """Record an artifact of a running attempt, if there is room."""
    execute, now = transaction.connection.execute, transaction.now
    running = execute(
        "SELECT 1 FROM jobs WHERE job_id = ? AND attempt = ? AND state = 'running'", (key.job_id, key.number)
    ).fetchone()
    if running is None:
        return ArtifactAnswer.FENCED
    if most_bytes:
        (others,) = execute(_OTHER_BYTES, (artifact.digest, key.job_id, artifact.name)).fetchone()
        if others + artifact.size > most_bytes:
            return ArtifactAnswer.FULL
    execute(
        "INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key.job_id,
            artifact.name,
            key.number,
            artifact.digest,
            artifact.size,
            artifact.files,
            now,
            now + artifact.retention_seconds,
        ),
    )
    return ArtifactAnswer.STORED


def listed(
    connection: sqlite3.Connection, now: float, run_id: str | None, job_id: str | None
) -> Sequence[ArtifactView]:
    """Return the artifacts of a run or a job."""
    column, value = ("run_id", run_id) if job_id is None else ("job_id", job_id)
    rows = connection.execute(
        "SELECT artifacts.*, jobs.run_id, jobs.name AS job FROM artifacts JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        f" WHERE jobs.{column} = ? AND expires_at > ? ORDER BY jobs.position, artifacts.name",
        (value, now),
    )
    return [artifact_view(row) for row in rows]


def needed(
    connection: sqlite3.Connection, now: float, run_id: str, names: Collection[str]
) -> Mapping[str, NeededJob]:
    """Return jobs of a run, or of those that it repeats, by their names."""
    found: dict[str, NeededJob] = {}
    before: str | None = run_id
    for _ in range(MOST_REPEATED):
        missing = [name for name in names if name not in found]
        if before is None or not missing:
            break
        jobs = connection.execute(
            "SELECT name, state, content FROM jobs LEFT JOIN outputs USING (job_id) WHERE run_id = ? AND name IN (SELECT value FROM json_each(?))",
            (before, json.dumps(missing)),
        ).fetchall()
        found |= needed_jobs(jobs, listed(connection, now, before, None) if jobs else ())
        row = connection.execute("SELECT rerun_of FROM runs WHERE run_id = ?", (before,)).fetchone()
        before = None if row is None else row["rerun_of"]
    return found


def outputs(connection: sqlite3.Connection, job_id: str) -> Mapping[str, str]:
    """Return the outputs of a job by their names."""
    row = connection.execute("SELECT content FROM outputs WHERE job_id = ?", (job_id,)).fetchone()
    return read_outputs(None if row is None else row["content"])


def expire(transaction: SqliteTransaction, limit: int) -> int:
    """Remove so many records that have expired."""
    return transaction.connection.execute(
        "DELETE FROM artifacts WHERE rowid IN (SELECT rowid FROM artifacts WHERE expires_at <= ? LIMIT ?)",
        (transaction.now, limit),
    ).rowcount


def recorded(connection: sqlite3.Connection, digests: Collection[str]) -> frozenset[str]:
    """Return those of the digests that some record names."""
    rows = connection.execute(
        "SELECT DISTINCT digest FROM artifacts WHERE digest IN (SELECT value FROM json_each(?))",
        (json.dumps(list(digests)),),
    )
    return frozenset(row["digest"] for row in rows)
