"""Stores which artifacts are kept, in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from solstice_orchestrator.store.artifact_records import (
    MOST_REPEATED,
    ArtifactAnswer,
    ArtifactRecord,
    ArtifactView,
    NeededJob,
)
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.artifact_rows import artifact_view, needed_jobs, read_outputs

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_LOCK: Final = 4_722_035
"""Of pg_advisory_xact_lock: who adds an artifact counts all, and is the only one who does."""
_OTHER_BYTES: Final = (
    "SELECT coalesce(sum(size), 0)::bigint FROM (SELECT DISTINCT digest, size FROM artifacts"
    " WHERE digest <> $1 AND NOT (job_id = $2 AND name = $3)) AS others"
)


async def record(
    transaction: PostgreSQLTransaction, key: AttemptKey, artifact: ArtifactRecord, most_bytes: int
) -> ArtifactAnswer:
    """Record an artifact of a running attempt, if there is room."""
    connection = transaction.connection
    running = await connection.fetchval(
        "SELECT true FROM jobs WHERE job_id = $1 AND attempt = $2 AND state = 'running' FOR SHARE",
        key.job_id,
        key.number,
    )
    if not running:
        return ArtifactAnswer.FENCED
    if most_bytes:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        others = await connection.fetchval(_OTHER_BYTES, artifact.digest, key.job_id, artifact.name)
        if others + artifact.size > most_bytes:
            return ArtifactAnswer.FULL
    now = await transaction.now()
    await connection.execute(
        "INSERT INTO artifacts VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (job_id, name) DO UPDATE"
        " SET attempt = excluded.attempt, digest = excluded.digest, size = excluded.size, files = excluded.files,"
        " created_at = excluded.created_at, expires_at = excluded.expires_at",
        key.job_id,
        artifact.name,
        key.number,
        artifact.digest,
        artifact.size,
        artifact.files,
        now,
        now + artifact.retention_seconds,
    )
    transaction.changed = True
    return ArtifactAnswer.STORED


async def listed(
    transaction: PostgreSQLTransaction, run_id: str | None, job_id: str | None
) -> Sequence[ArtifactView]:
    """Return the artifacts of a run or a job."""
    column, value = ("run_id", run_id) if job_id is None else ("job_id", job_id)
    rows = await transaction.connection.fetch(
        "SELECT artifacts.*, jobs.run_id, jobs.name AS job FROM artifacts JOIN jobs USING (job_id)"  # noqa: S608  made of constants
        f" WHERE jobs.{column} = $1 AND expires_at > $2 ORDER BY jobs.position, artifacts.name",
        value,
        await transaction.now(),
    )
    return [artifact_view(row) for row in rows]


async def needed(
    transaction: PostgreSQLTransaction, run_id: str, names: Collection[str]
) -> Mapping[str, NeededJob]:
    """Return jobs of a run, or of those that it repeats, by their names."""
    fetch, found = transaction.connection.fetch, dict[str, NeededJob]()
    before: str | None = run_id
    for _ in range(MOST_REPEATED):
        missing = [name for name in names if name not in found]
        if before is None or not missing:
            break
        jobs = await fetch(
            "SELECT name, state, content FROM jobs LEFT JOIN outputs USING (job_id)"
            " WHERE run_id = $1 AND name = ANY($2::text[])",
            before,
            missing,
        )
        found |= needed_jobs(jobs, await listed(transaction, before, None) if jobs else ())
        before = await transaction.connection.fetchval(
            "SELECT rerun_of FROM requests WHERE run_id = $1", before
        )
    return found


async def outputs(connection: "Connection", job_id: str) -> Mapping[str, str]:
    """Return the outputs of a job by their names."""
    return read_outputs(await connection.fetchval("SELECT content FROM outputs WHERE job_id = $1", job_id))


async def expire(transaction: PostgreSQLTransaction, limit: int) -> int:
    """Remove so many records that have expired."""
    rows = await transaction.connection.fetch(
        "DELETE FROM artifacts WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM artifacts WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1",
        await transaction.now(),
        limit,
    )
    transaction.changed = bool(rows)
    return len(rows)


async def recorded(connection: "Connection", digests: Collection[str]) -> frozenset[str]:
    """Return those of the digests that some record names."""
    rows = await connection.fetch(
        "SELECT DISTINCT digest FROM artifacts WHERE digest = ANY($1::text[])", list(digests)
    )
    return frozenset(row["digest"] for row in rows)
