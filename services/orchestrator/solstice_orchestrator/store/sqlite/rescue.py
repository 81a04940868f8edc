"""Takes back attempts and planning whose leases ran out, in the SQLite store."""

from collections.abc import Sequence

from solstice_orchestrator.store.decisions.claim import end_backoffs
from solstice_orchestrator.store.decisions.rescue import rescue_expired
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.sqlite.tables import worker_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction, load_runs, write


def rescue(transaction: SqliteTransaction) -> Sequence[AttemptKey]:
    """End attempts and planning whose leases ran out."""
    connection, now = transaction.connection, transaction.now
    rows = connection.execute(
        "SELECT run_id FROM jobs WHERE finished_at IS NULL AND state = 'running' AND lease_until <= ?1"
        " UNION SELECT run_id FROM jobs WHERE state = 'backoff' AND retry_at <= ?1"
        " UNION SELECT run_id FROM runs WHERE timeout_at <= ?1 AND finished_at IS NULL"
        " UNION SELECT run_id FROM runs LEFT JOIN workers ON worker_id = plan_worker"
        " WHERE state = 'planning' AND plan_worker IS NOT NULL"
        " AND (seen_at IS NULL OR seen_at <= ?2 OR plan_since <= ?3)",
        (now, now - transaction.rules.lease_seconds, now - transaction.rules.planning_seconds),
    ).fetchall()
    if not rows:
        worker_table.forget_workers(connection, now, transaction.rules.lease_seconds)
        return []
    unit = load_runs(transaction, [row["run_id"] for row in rows])
    end_backoffs(unit)
    seen = {row["worker_id"]: row["seen_at"] for row in connection.execute("SELECT * FROM workers")}
    rescued = rescue_expired(unit, seen)
    write(transaction, unit.changes())
    worker_table.forget_workers(connection, now, transaction.rules.lease_seconds)
    return rescued
