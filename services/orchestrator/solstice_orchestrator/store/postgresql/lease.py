"""Renews leases, and stores logs, images and the progress of attempts, in the PostgreSQL store."""

from collections.abc import Mapping, Sequence

from solstice_orchestrator.store.decisions.finish import by_key
from solstice_orchestrator.store.decisions.lease import progress, renewal
from solstice_orchestrator.store.postgresql.tables import worker_table
from solstice_orchestrator.store.postgresql.tables.transaction import (
    PostgreSQLTransaction,
    attempts_of,
    write,
)
from solstice_orchestrator.store.protocol import AttemptKey, Renewal
from solstice_orchestrator.store.records.changes import RowChanges
from solstice_orchestrator.store.records.rows import log_rows
from solstice_orchestrator.store.views import LogChunk


async def renew(transaction: PostgreSQLTransaction, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
    """Renew the worker's leases; return which it lost and which must end."""
    now = await transaction.now()
    renewed = await _prolong(transaction, worker_id, claimed, now) if claimed else {}
    # After the jobs, in the order of a transaction that ends a job and counts it against the worker: else a deadlock.
    worker = await worker_table.record_heartbeat(transaction.connection, worker_id, now)
    past = await attempts_of(transaction, [key.job_id for key in claimed if key not in renewed])
    ended = {key: attempt.reason for key, attempt in by_key(past).items()}
    return renewal(claimed, renewed, ended, worker, now)


async def _prolong(
    transaction: PostgreSQLTransaction, worker_id: str, claimed: Sequence[AttemptKey], now: float
) -> Mapping[AttemptKey, bool]:
    """Renew leases; return the attempts still held, and whether each must end."""
    rows = await transaction.connection.fetch(
        # Locked in the common order, before anything is changed.
        "WITH held AS MATERIALIZED (SELECT job_id FROM jobs"
        " JOIN unnest($1::text[], $2::integer[]) AS ours (job_id, attempt) USING (job_id, attempt)"
        " WHERE worker_id = $3 AND state = 'running' ORDER BY run_id, position FOR NO KEY UPDATE OF jobs)"
        " UPDATE jobs SET lease_until = $4 FROM held WHERE jobs.job_id = held.job_id"
        " RETURNING jobs.job_id, jobs.attempt, jobs.cancel_requested",
        [key.job_id for key in claimed],
        [key.number for key in claimed],
        worker_id,
        now + transaction.rules.lease_seconds,
    )
    return {
        AttemptKey(job_id=row["job_id"], number=row["attempt"]): bool(row["cancel_requested"]) for row in rows
    }


async def append_log(
    transaction: PostgreSQLTransaction, key: AttemptKey, chunks: Sequence[LogChunk], service: str
) -> bool:
    """Store those of `chunks` that are new."""
    # This lock waits for a transaction that is ending the attempt, and then finds it ended.
    claimed = await transaction.connection.fetchval(
        "SELECT true FROM jobs WHERE job_id = $1 AND attempt = $2 AND state = 'running' FOR SHARE",
        key.job_id,
        key.number,
    )
    if not claimed:
        return False
    await write(transaction, RowChanges(log_rows=log_rows(key.job_id, key.number, chunks, service)))
    return True


async def record_image(transaction: PostgreSQLTransaction, key: AttemptKey, image: str) -> bool:
    """Record the image of a running attempt."""
    updated = await transaction.connection.fetchval(
        "UPDATE jobs SET image = $1 WHERE job_id = $2 AND attempt = $3 AND state = 'running' RETURNING true",
        image,
        key.job_id,
        key.number,
    )
    transaction.changed = bool(updated)
    return bool(updated)


async def provisioning(
    transaction: PostgreSQLTransaction, key: AttemptKey, seconds: float, *, done: bool
) -> bool:
    """Record for how long an attempt has prepared its container or VM."""
    changed = await transaction.connection.fetchval(
        "UPDATE jobs SET provisioning_since = $3, provisioning_seconds = $4"
        " WHERE job_id = $1 AND attempt = $2 AND state = 'running' RETURNING true",
        key.job_id,
        key.number,
        *progress(await transaction.now(), seconds, done=done),
    )
    transaction.changed = transaction.changed or bool(changed)
    return bool(changed)
