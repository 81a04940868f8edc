"""Renews leases, stores logs and ends attempts in the SQLite store; rescues expired ones."""

import sqlite3
from collections.abc import Sequence

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.decisions import finish as ends
from solstice_orchestrator.store.decisions.claim import end_backoffs
from solstice_orchestrator.store.decisions.lease import renewal
from solstice_orchestrator.store.decisions.rescue import rescue as decide_rescue
from solstice_orchestrator.store.protocol import AttemptKey, Renewal
from solstice_orchestrator.store.records.rows import kind_column
from solstice_orchestrator.store.sqlite.tables import workers
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    attempts_of,
    load_jobs,
    load_runs,
    write,
)
from solstice_orchestrator.store.views import LogChunk


def renew(transaction: SqliteTransaction, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
    """Renew the worker's leases; return which it lost and which must end."""
    worker = workers.record_heartbeat(transaction.connection, worker_id, transaction.now)
    until = transaction.now + transaction.rules.lease_seconds
    renewed: dict[AttemptKey, bool] = {}
    ended: dict[AttemptKey, Reason] = {}
    for key in claimed:
        row = transaction.connection.execute(
            "UPDATE jobs SET lease_until = ? WHERE job_id = ? AND attempt = ? AND worker_id = ?"
            " AND state = 'running' RETURNING cancel_asked",
            (until, key.job_id, key.number, worker_id),
        ).fetchone()
        if row is not None:
            renewed[key] = bool(row["cancel_asked"])
        elif (past := _ended(transaction, key)) is not None:
            ended[key] = Reason(past["reason"])
    return renewal(claimed, renewed, ended, worker, transaction.now)


def append_log(transaction: SqliteTransaction, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
    """Store those of `chunks` that are new."""
    claimed = transaction.connection.execute(
        "SELECT 1 FROM jobs WHERE job_id = ? AND attempt = ? AND state = 'running'", (key.job_id, key.number)
    ).fetchone()
    if claimed is None:
        return False
    kinds = [
        (key.job_id, key.number, chunk.sequence, kind)
        for chunk in chunks
        if (kind := kind_column(chunk)) is not None
    ]
    if kinds:
        transaction.connection.executemany(
            "INSERT INTO log_marks VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", kinds
        )
    transaction.connection.executemany(
        "INSERT INTO log_chunks (job_id, attempt, sequence, at, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(key.job_id, key.number, chunk.sequence, chunk.at, chunk.data) for chunk in chunks],
    )
    return True


def finish(transaction: SqliteTransaction, group: Sequence[ends.AttemptEnd]) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before."""
    unit = load_jobs(transaction, {key.job_id for key, _ in group})
    stale = ends.ended_attempts(unit, group)
    past = {
        AttemptKey(job_id=attempt.job_id, number=attempt.number): attempt
        for attempt in attempts_of(transaction, [key.job_id for key in stale])
    }
    answers = ends.finish(unit, group, past)
    write(transaction, unit.changes())
    return answers


def rescue(transaction: SqliteTransaction) -> Sequence[AttemptKey]:
    """End attempts and planning whose leases ran out."""
    connection, now = transaction.connection, transaction.now
    found = connection.execute(
        "SELECT run_id FROM jobs WHERE finished_at IS NULL AND state = 'running' AND lease_until <= ?1"
        " UNION SELECT run_id FROM jobs WHERE state = 'backoff' AND retry_at <= ?1"
        " UNION SELECT run_id FROM runs WHERE timeout_at <= ?1 AND finished_at IS NULL"
        " UNION SELECT run_id FROM runs LEFT JOIN workers ON worker_id = plan_worker"
        " WHERE state = 'planning' AND plan_worker IS NOT NULL"
        " AND (seen_at IS NULL OR seen_at <= ?2 OR plan_since <= ?3)",
        (now, now - transaction.rules.lease_seconds, now - transaction.rules.planning_seconds),
    ).fetchall()
    if not found:
        workers.forget_workers(connection, now, transaction.rules.lease_seconds)
        return []
    unit = load_runs(transaction, [row["run_id"] for row in found])
    end_backoffs(unit)
    seen = {row["worker_id"]: row["seen_at"] for row in connection.execute("SELECT * FROM workers")}
    rescued = decide_rescue(unit, seen)
    write(transaction, unit.changes())
    workers.forget_workers(connection, now, transaction.rules.lease_seconds)
    return rescued


def _ended(transaction: SqliteTransaction, key: AttemptKey) -> sqlite3.Row | None:
    row: sqlite3.Row | None = transaction.connection.execute(
        "SELECT reason FROM attempts WHERE job_id = ? AND number = ?", (key.job_id, key.number)
    ).fetchone()
    return row
