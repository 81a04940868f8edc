"""The one place where jobs and runs change their state; each change tells of itself in the outbox."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from solstice_orchestrator.jobs import (
    INFRASTRUCTURE,
    JobState,
    Reason,
    RunState,
    may_move,
    run_state,
)
from solstice_orchestrator.needs import Node, unblock
from solstice_orchestrator.statuses import (
    RUN_CONTEXT,
    context_of,
    describe_job,
    describe_run,
    encode_status,
    subject,
)
from solstice_orchestrator.store.protocol import OutboxKind
from solstice_orchestrator.store.rows import REQUEST, request_fields, timestamp
from solstice_orchestrator.store.transaction import Transaction

TELL: Final = "INSERT INTO outbox (kind, request_id, body) VALUES (?, ?, ?)"


class IllegalMove(Exception):
    """A transition that the table in `jobs.py` does not have: a mistake in our code, never a state of the world."""

    def __init__(self, job_id: str, old: JobState, new: JobState) -> None:
        super().__init__(f"job {job_id} may not go from {old.value} to {new.value}")


def job_row(transaction: Transaction, job_id: str) -> sqlite3.Row | None:
    """The job as it is now."""
    row: sqlite3.Row | None = transaction.connection.execute(
        "SELECT * FROM jobs WHERE job_id = ?", (job_id,)
    ).fetchone()
    return row


def move_job(
    transaction: Transaction,
    job: sqlite3.Row,
    new: JobState,
    reason: Reason,
    *,
    detail: str = "",
    **columns: Any,
) -> None:
    """Bring `job` (a fresh row) to `new`, set `columns` beside it, and tell of it.

    The run is not looked at: call `settle_run` once all its jobs have moved. Raises IllegalMove.
    """
    old = JobState(job["state"])
    if not may_move(old, new):
        raise IllegalMove(job["job_id"], old, new)
    values: dict[str, Any] = {
        "state": new.value,
        "reason": reason.value,
        "detail": detail,
        "finished_at": transaction.now if new.final else None,
        **columns,
    }
    assignments = ", ".join(f"{name} = ?" for name in values)
    transaction.connection.execute(
        f"UPDATE jobs SET {assignments} WHERE job_id = ?",  # noqa: S608  the names are those of keyword arguments
        (*values.values(), job["job_id"]),
    )
    _tell_job(transaction, job, {"attempt": job["attempt"], "exit_code": None, **values})


def add_job(transaction: Transaction, values: dict[str, Any]) -> None:
    """A new job in its first state, told of like any transition; `values` are the columns of its row."""
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    transaction.connection.execute(
        f"INSERT INTO jobs ({names}) VALUES ({marks})",  # noqa: S608  the names are our own
        tuple(values.values()),
    )
    row = job_row(transaction, values["job_id"])
    if row is not None:
        _tell_job(transaction, row, row)


def settle_run(transaction: Transaction, run_id: str) -> None:
    """Let blocked jobs go on (or skip them) as far as their needs have ended, and bring the run to what its jobs amount to."""
    connection = transaction.connection
    jobs = connection.execute(
        "SELECT job_id, run_id, name, runs_on, needs, state, attempt FROM jobs WHERE run_id = ? ORDER BY position",
        (run_id,),
    ).fetchall()
    states = {job["name"]: JobState(job["state"]) for job in jobs}
    if JobState.BLOCKED in states.values():
        by_name = {job["name"]: job for job in jobs}
        nodes = {
            name: Node(state=states[name], needs=tuple(json.loads(job["needs"])))
            for name, job in by_name.items()
        }
        for unblocked in unblock(nodes):
            move_job(transaction, by_name[unblocked.name], unblocked.state, unblocked.reason)
            states[unblocked.name] = unblocked.state
    run = connection.execute("SELECT state FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    new = run_state(tuple(states.values()))
    if RunState(run["state"]) is not new:
        move_run(transaction, run_id, new, jobs=tuple(states.values()))


def move_run(
    transaction: Transaction,
    run_id: str,
    new: RunState,
    *,
    reason: Reason | None = None,
    detail: str = "",
    jobs: Sequence[JobState] = (),
) -> None:
    """Bring a run to `new` and tell of it; a run that ends because our budget was spent becomes a dead letter too."""
    now = transaction.now
    run = transaction.connection.execute(
        "UPDATE runs SET state = ?, detail = ?, sequence = sequence + 1,"  # noqa: S608  made of constants
        " started_at = CASE WHEN started_at IS NULL AND ? THEN ? ELSE started_at END,"
        " finished_at = ?, plan_worker = NULL, plan_since = NULL"
        f" WHERE run_id = ? RETURNING *, {REQUEST}",
        (
            new.value,
            detail,
            new is RunState.RUNNING,
            now,
            now if new.final else None,
            run_id,
        ),
    ).fetchone()
    base, request = transaction.rules.public_url, request_fields(run["request"])
    body = encode_status(
        subject(request),
        status_id=transaction.new_id(),
        request_id=request["request_id"],
        run_id=run_id,
        sequence=run["sequence"],
        context=RUN_CONTEXT,
        state=new.value,
        reason=None if reason is None else reason.value,
        description=describe_run(new, detail, jobs),
        occurred_at=timestamp(now),
        target_url=base and f"{base}/runs/{run_id}",
    )
    transaction.connection.execute(TELL, (OutboxKind.STATUS.value, request["request_id"], body))
    if new is RunState.ERRORED:
        _bury(transaction, run, reason, detail)


def _tell_job(transaction: Transaction, job: sqlite3.Row, now: Mapping[str, Any] | sqlite3.Row) -> None:
    """Tell what `job` has become: `now` holds its state, reason, detail, attempt and exit code."""
    state, reason = JobState(now["state"]), Reason(now["reason"])
    run = transaction.connection.execute(
        f"UPDATE runs SET sequence = sequence + 1 WHERE run_id = ? RETURNING sequence, {REQUEST}",  # noqa: S608  made of constants
        (job["run_id"],),
    ).fetchone()
    base, request = transaction.rules.public_url, request_fields(run["request"])
    body = encode_status(
        subject(request),
        status_id=transaction.new_id(),
        request_id=request["request_id"],
        run_id=job["run_id"],
        sequence=run["sequence"],
        context=context_of(job["name"]),
        state=state.value,
        reason=reason.value,
        description=describe_job(
            state, reason, detail=now["detail"], runs_on=job["runs_on"], attempt=now["attempt"]
        ),
        occurred_at=timestamp(transaction.now),
        target_url=base and f"{base}/jobs/{job['job_id']}",
        job_id=job["job_id"],
        job_name=job["name"],
        attempt=now["attempt"] or None,
        exit_code=now["exit_code"],
    )
    transaction.connection.execute(TELL, (OutboxKind.STATUS.value, request["request_id"], body))


def _bury(transaction: Transaction, run: sqlite3.Row, reason: Reason | None, detail: str) -> None:
    """The request goes to the dead letters with its whole history, when it was the world that failed it (DESIGN 7)."""
    attempts = transaction.connection.execute(
        "SELECT jobs.name, attempts.* FROM jobs JOIN attempts USING (job_id)"
        " WHERE jobs.run_id = ? AND jobs.state = ? ORDER BY jobs.position, attempts.number",
        (run["run_id"], JobState.ERRORED.value),
    ).fetchall()
    history = [
        f"{row['name']} #{row['number']} on {row['worker_id']}, {timestamp(row['started_at'])} to "
        f"{timestamp(row['finished_at'])}: {row['reason']}" + (f" ({row['detail']})" if row["detail"] else "")
        for row in attempts
        if row["finished_at"] is not None
    ]
    if reason is None:
        spoiled = [row for row in attempts if Reason(row["reason"]) in INFRASTRUCTURE]
        reason, detail = (Reason(spoiled[-1]["reason"]), spoiled[-1]["detail"]) if spoiled else (None, detail)
    if reason not in INFRASTRUCTURE:
        return
    headers = {
        "x-solstice-reason": reason.value,
        "x-solstice-detail": detail[:2048],
        "x-solstice-run": run["run_id"],
        "x-solstice-refused-at": timestamp(transaction.now),
        # All headers of a message have to fit one AMQP frame.
        "x-solstice-history": "\n".join(history)[:8192],
    }
    transaction.connection.execute(
        "INSERT INTO outbox (kind, request_id, body, headers) VALUES (?, ?, ?, ?)",
        (
            OutboxKind.DEAD_LETTER.value,
            request_fields(run["request"])["request_id"],
            run["request"],
            json.dumps(headers),
        ),
    )
