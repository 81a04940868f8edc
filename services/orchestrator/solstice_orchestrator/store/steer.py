"""People steer: cancel and run again."""

import json
import sqlite3
import uuid

from solstice_orchestrator.jobs import JobState, Reason, RunState
from solstice_orchestrator.store.admit import admit
from solstice_orchestrator.store.moves import job_row, move_job, move_run, settle_run
from solstice_orchestrator.store.protocol import JobView, RunView
from solstice_orchestrator.store.reading import job, run
from solstice_orchestrator.store.rows import REQUEST, request_of, timestamp
from solstice_orchestrator.store.transaction import Transaction


def cancel_job(transaction: Transaction, job_id: str) -> JobView | None:
    """End one job, or ask its holder to."""
    row = job_row(transaction, job_id)
    if row is not None and not JobState(row["state"]).final:
        _cancel(transaction, row)
        settle_run(transaction, row["run_id"])
    return job(transaction.connection, job_id)


def cancel_run(transaction: Transaction, run_id: str) -> RunView | None:
    """End every job of a run, or its planning."""
    view = run(transaction.connection, run_id)
    if view is None or view.state.final:
        return view
    if view.state is RunState.PLANNING:
        move_run(transaction, run_id, RunState.CANCELLED, reason=Reason.CANCEL_REQUESTED)
        return run(transaction.connection, run_id)
    rows = transaction.connection.execute(
        "SELECT * FROM jobs WHERE run_id = ? AND finished_at IS NULL ORDER BY position", (run_id,)
    ).fetchall()
    for row in rows:
        _cancel(transaction, row)
    settle_run(transaction, run_id)
    return run(transaction.connection, run_id)


def rerun(transaction: Transaction, run_id: str) -> RunView | None:
    """The same request again, on purpose: under a new request id and without the old idempotency key."""
    row = transaction.connection.execute(
        f"SELECT {REQUEST} FROM runs WHERE run_id = ?",  # noqa: S608  made of constants
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    # Not by the fast reader: it would round large integers of fields that we do not know.
    fields = json.loads(row["request"])
    fields.pop("idempotency_key", None)
    fields["request_id"] = str(uuid.UUID(int=transaction.rules.rng.getrandbits(128), version=4))
    fields["submitted_at"] = timestamp(transaction.now)
    request = request_of(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
    (admitted,) = admit(transaction, [request], [request.encode()])
    transaction.connection.execute("UPDATE runs SET rerun_of = ? WHERE run_id = ?", (run_id, admitted.run_id))
    return run(transaction.connection, admitted.run_id)


def _cancel(transaction: Transaction, row: sqlite3.Row) -> None:
    if row["state"] == JobState.RUNNING.value:
        transaction.connection.execute("UPDATE jobs SET cancel_asked = 1 WHERE job_id = ?", (row["job_id"],))
    else:
        move_job(transaction, row, JobState.CANCELLED, Reason.CANCEL_REQUESTED, retry_at=None)
