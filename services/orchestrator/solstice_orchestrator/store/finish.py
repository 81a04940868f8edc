"""Attempts end, by their holder's word or for want of it, and what follows from that is decided here."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from solstice_orchestrator.jobs import INFRASTRUCTURE, JobState, Outcome, Reason
from solstice_orchestrator.retries import next_retry
from solstice_orchestrator.statuses import detail_of
from solstice_orchestrator.store.claims import end_backoffs
from solstice_orchestrator.store.moves import job_row, move_job, settle_run
from solstice_orchestrator.store.plans import plan_failed
from solstice_orchestrator.store.protocol import AttemptKey, LogChunk
from solstice_orchestrator.store.transaction import Transaction


def finish(transaction: Transaction, key: AttemptKey, outcome: Outcome) -> bool:
    """Record the end of an attempt; True also when exactly this was recorded before."""
    job = _current(transaction, key)
    if job is None:
        return _ended_so(transaction, key, outcome)
    _end(transaction, job, outcome)
    settle_run(transaction, job["run_id"])
    return True


def rescue(transaction: Transaction) -> Sequence[AttemptKey]:
    """End what nobody holds any more."""
    now, connection = transaction.now, transaction.connection
    dead_since = now - transaction.rules.lease_seconds
    end_backoffs(transaction)
    rows = connection.execute(
        "SELECT jobs.*, workers.seen_at FROM jobs LEFT JOIN workers USING (worker_id)"
        " WHERE finished_at IS NULL AND state = 'running' AND lease_until <= ? ORDER BY age",
        (now,),
    ).fetchall()
    for row in rows:
        gone = row["seen_at"] is None or row["seen_at"] <= dead_since
        reason = Reason.AGENT_LOST if gone else Reason.LEASE_EXPIRED
        _end(
            transaction,
            row,
            Outcome(state=JobState.ERRORED, reason=reason, detail=f"held by {row['worker_id']}"),
        )
    for run_id in dict.fromkeys(row["run_id"] for row in rows):
        settle_run(transaction, run_id)
    _rescue_planning(transaction, dead_since)
    return [AttemptKey(job_id=row["job_id"], number=row["attempt"]) for row in rows]


def append_log(transaction: Transaction, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
    """Keep what is new of `chunks`."""
    if _current(transaction, key) is None:
        return False
    transaction.connection.executemany(
        "INSERT INTO log_chunks VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(key.job_id, key.number, chunk.sequence, chunk.at, chunk.data) for chunk in chunks],
    )
    return True


def _current(transaction: Transaction, key: AttemptKey) -> sqlite3.Row | None:
    job = job_row(transaction, key.job_id)
    held = job is not None and job["state"] == JobState.RUNNING.value and job["attempt"] == key.number
    return job if held else None


def _ended_so(transaction: Transaction, key: AttemptKey, outcome: Outcome) -> bool:
    row = transaction.connection.execute(
        "SELECT * FROM attempts WHERE job_id = ? AND number = ? AND finished_at IS NOT NULL",
        (key.job_id, key.number),
    ).fetchone()
    return row is not None and (
        row["state"],
        row["reason"],
        row["exit_code"],
        row["step"],
        row["detail"],
    ) == (
        outcome.state.value,
        outcome.reason.value,
        outcome.exit_code,
        outcome.step,
        detail_of(outcome),
    )


def _end(transaction: Transaction, job: sqlite3.Row, outcome: Outcome) -> None:
    """Close the attempt and move the job to what follows."""
    transaction.connection.execute(
        "UPDATE attempts SET state = ?, reason = ?, finished_at = ?, exit_code = ?, step = ?, detail = ?"
        " WHERE job_id = ? AND number = ?",
        (
            outcome.state.value,
            outcome.reason.value,
            transaction.now,
            outcome.exit_code,
            outcome.step,
            detail_of(outcome),
            job["job_id"],
            job["attempt"],
        ),
    )
    columns: dict[str, Any] = {"lease_until": None, "exit_code": outcome.exit_code, "step": outcome.step}
    detail = detail_of(outcome)
    failed_by_us = outcome.reason in INFRASTRUCTURE
    if (failed_by_us or outcome.reason is Reason.RELEASED) and job["cancel_asked"]:
        # Somebody wanted it to end, and it has: there is nothing to try again.
        move_job(transaction, job, JobState.CANCELLED, Reason.CANCEL_REQUESTED, **columns)
    elif outcome.reason is Reason.RELEASED:
        move_job(transaction, job, JobState.WAITING, Reason.RELEASED, worker_id=None, **columns)
    elif failed_by_us:
        rules, failures = transaction.rules, job["failures"] + 1
        wait = next_retry(failures, outcome.reason, rules.rng, base_seconds=rules.retry_base_seconds)
        if wait is None:
            move_job(
                transaction,
                job,
                JobState.ERRORED,
                outcome.reason,
                detail=detail,
                failures=failures,
                **columns,
            )
        else:
            move_job(
                transaction,
                job,
                JobState.BACKOFF,
                outcome.reason,
                detail=detail,
                failures=failures,
                retry_at=transaction.now + wait,
                worker_id=None,
                **columns,
            )
    else:
        move_job(transaction, job, outcome.state, outcome.reason, detail=detail, **columns)


def _rescue_planning(transaction: Transaction, dead_since: float) -> None:
    rows = transaction.connection.execute(
        "SELECT run_id, plan_worker, plan_since, seen_at FROM runs"
        " LEFT JOIN workers ON worker_id = plan_worker"
        " WHERE state = 'planning' AND plan_worker IS NOT NULL AND"
        " (seen_at IS NULL OR seen_at <= ? OR plan_since <= ?)",
        (dead_since, transaction.now - transaction.rules.planning_seconds),
    ).fetchall()
    for row in rows:
        gone = row["seen_at"] is None or row["seen_at"] <= dead_since
        reason = Reason.AGENT_LOST if gone else Reason.LEASE_EXPIRED
        plan_failed(transaction, row["run_id"], reason, f"planned by {row['plan_worker']}")
