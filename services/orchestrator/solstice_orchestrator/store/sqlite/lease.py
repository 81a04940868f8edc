"""Renews leases, and stores logs, images and the progress of attempts, in the SQLite store."""

from collections.abc import Sequence

from solstice_orchestrator.store.decisions.finish import by_key
from solstice_orchestrator.store.decisions.lease import progress, renewal
from solstice_orchestrator.store.protocol import AttemptKey, Renewal
from solstice_orchestrator.store.records.rows import log_rows
from solstice_orchestrator.store.sqlite.tables import worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction, attempts_of, insert_log
from solstice_orchestrator.store.views import LogChunk


def renew(transaction: SqliteTransaction, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
    """Renew the worker's leases; return which it lost and which must end."""
    worker = worker_table.record_heartbeat(transaction.connection, worker_id, transaction.now)
    until = transaction.now + transaction.rules.lease_seconds
    renewed: dict[AttemptKey, bool] = {}
    for key in claimed:
        row = transaction.connection.execute(
            "UPDATE jobs SET lease_until = ? WHERE job_id = ? AND attempt = ? AND worker_id = ?"
            " AND state = 'running' RETURNING cancel_requested",
            (until, key.job_id, key.number, worker_id),
        ).fetchone()
        if row is not None:
            renewed[key] = bool(row["cancel_requested"])
    past = attempts_of(transaction, [key.job_id for key in claimed if key not in renewed])
    ended = {key: attempt.reason for key, attempt in by_key(past).items()}
    return renewal(claimed, renewed, ended, worker, transaction.now)


def append_log(
    transaction: SqliteTransaction, key: AttemptKey, chunks: Sequence[LogChunk], service: str
) -> bool:
    """Store those of `chunks` that are new."""
    claimed = transaction.connection.execute(
        "SELECT 1 FROM jobs WHERE job_id = ? AND attempt = ? AND state = 'running'", (key.job_id, key.number)
    ).fetchone()
    if claimed is None:
        return False
    insert_log(transaction.connection, log_rows(key.job_id, key.number, chunks, service))
    return True


def record_image(transaction: SqliteTransaction, key: AttemptKey, image: str) -> bool:
    """Record the image of a running attempt."""
    updated = transaction.connection.execute(
        "UPDATE jobs SET image = ? WHERE job_id = ? AND attempt = ? AND state = 'running'",
        (image, key.job_id, key.number),
    )
    return updated.rowcount == 1


def provisioning(transaction: SqliteTransaction, key: AttemptKey, seconds: float, *, done: bool) -> bool:
    """Record for how long an attempt has prepared its container or VM."""
    changed = transaction.connection.execute(
        "UPDATE jobs SET provisioning_since = ?, provisioning_seconds = ?"
        " WHERE job_id = ? AND attempt = ? AND state = 'running'",
        (*progress(transaction.now, seconds, done=done), key.job_id, key.number),
    )
    return changed.rowcount == 1
