"""Admits requests as runs in the SQLite store, and gives runs to planning.

A batch takes a few statements; each request is admitted once.
"""

import json
from collections.abc import Collection, Sequence
from typing import Final, TypeVar

import orjson

from solstice_common.messages import JobRequestV1, stored_request
from solstice_common.storage.sqlite import insert_many
from solstice_orchestrator.store.decisions.admit import NewRun, first_statuses, new_runs, renewed_request
from solstice_orchestrator.store.decisions.plan import BEGUN_AT_ONCE, begin
from solstice_orchestrator.store.protocol import Admission, Admitted, Duplicate, PlanningTask
from solstice_orchestrator.store.sqlite.cancel import end_cancelled
from solstice_orchestrator.store.sqlite.tables import workers
from solstice_orchestrator.store.sqlite.tables.transaction import (
    REQUEST,
    SqliteTransaction,
    insert_messages,
    load_runs,
    write,
)

Key = TypeVar("Key", str, bytes)

_ASKED_AT_ONCE: Final = 64
"""Keys per query: few enough for a prepared statement, and far below SQLite's limit on variables."""
# The rows as one JSON text: Python's module releases the interpreter lock once per row it fetches, and must take it
# back from a busy event loop each time.
_TO_PLAN: Final = (
    "SELECT json_group_array(json_array(age, run_id, plan_attempt, CAST(body AS TEXT)))"
    " FROM (SELECT age, run_id, plan_attempt, body FROM runs INDEXED BY runs_to_plan"
    " JOIN requests USING (age) WHERE state = 'planning' AND plan_worker IS NULL AND plan_at <= ? ORDER BY age LIMIT ?)"
)


def admit(
    transaction: SqliteTransaction, requests: Sequence[JobRequestV1], bodies: Sequence[bytes]
) -> Sequence[Admission]:
    """Store the new requests; return for each whether it was admitted or a duplicate."""
    new = new_runs(transaction.moment, requests, bodies)
    known = _among(
        transaction,
        "SELECT request_key FROM request_aliases WHERE request_key IN",
        [each.request_key for each in new],
    )
    fresh = [each for each in new if each.request_key not in known] if known else new
    next_age = transaction.connection.execute("SELECT ifnull(max(age), 0) + 1 FROM runs").fetchone()[0]
    aged = list(enumerate(fresh, start=next_age))
    if _insert_runs(transaction, aged) == len(new):
        _keep_and_tell(transaction, aged)
        return [Admitted(run_id=each.run_id) for each in new]
    stored = _among(transaction, "SELECT run_id FROM runs WHERE run_id IN", [each.run_id for each in fresh])
    _keep_and_tell(transaction, [(age, each) for age, each in aged if each.run_id in stored])
    return [
        Admitted(run_id=each.run_id)
        if each.run_id in stored
        else Duplicate(run_id=_run_of(transaction, each))
        for each in new
    ]


def rerun(transaction: SqliteTransaction, run_id: str, only: Collection[str] | None) -> str | None:
    """Create a new run of the same request, and return its id.

    `only` limits it to these jobs. None when there is no such run.
    """
    row = transaction.connection.execute(
        f"SELECT {REQUEST} FROM runs WHERE run_id = ?",  # noqa: S608  made of constants
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    request = renewed_request(transaction.moment, row["request"])
    (admitted,) = admit(transaction, [request], [request.encode()])
    transaction.connection.execute(
        "UPDATE runs SET rerun_of = ?, only_jobs = ? WHERE run_id = ?",
        (run_id, None if only is None else json.dumps(sorted(only)), admitted.run_id),
    )
    return admitted.run_id


def claim_planning(transaction: SqliteTransaction, worker_id: str, limit: int) -> Sequence[PlanningTask]:
    """Claim runs that wait to be planned, oldest first."""
    _begin(transaction)
    if not workers.takes_jobs(transaction.connection, worker_id, transaction.now):
        return []
    (listed,) = transaction.connection.execute(_TO_PLAN, (transaction.now, limit)).fetchone()
    rows = orjson.loads(listed)
    if not rows:
        return []
    workers.record_claim(transaction.connection, worker_id, transaction.now, transaction.rules.lease_seconds)
    transaction.connection.execute(
        "UPDATE runs SET plan_worker = ?, plan_since = ?, plan_attempt = plan_attempt + 1"
        " WHERE age IN (SELECT value FROM json_each(?))",
        (worker_id, transaction.now, json.dumps([row[0] for row in rows])),
    )
    return [
        PlanningTask(run_id=run_id, attempt=attempt + 1, request=stored_request(request.encode()))
        for _, run_id, attempt, request in rows
    ]


def _begin(transaction: SqliteTransaction) -> None:
    """Move delayed runs whose time has come to PLANNING, before any claim."""
    due = transaction.connection.execute(
        "SELECT run_id FROM runs INDEXED BY runs_delayed WHERE state = 'delayed' AND plan_at <= ?"
        " ORDER BY plan_at LIMIT ?",
        (transaction.now, BEGUN_AT_ONCE),
    ).fetchall()
    if due:
        unit = load_runs(transaction, [row["run_id"] for row in due])
        begin(unit)
        write(transaction, unit.changes())


def take_back_planning(transaction: SqliteTransaction, worker_id: str, claimed: Collection[str]) -> None:
    """Release the worker's planning, but for the runs in `claimed`."""
    transaction.connection.execute(
        "UPDATE runs SET plan_worker = NULL, plan_since = NULL WHERE state = 'planning' AND plan_worker = ?"
        " AND run_id NOT IN (SELECT value FROM json_each(?))",
        (worker_id, json.dumps(list(claimed))),
    )


def _insert_runs(transaction: SqliteTransaction, new: Sequence[tuple[int, NewRun]]) -> int:
    """Insert many runs with one statement.

    SQLite's module releases the interpreter lock once per statement, not once per row.
    """
    rows = [
        (
            age,
            each.run_id,
            each.request_key,
            each.idempotency_key,
            each.repository,
            each.ref,
            transaction.now,
            each.change_key,
            each.state,
            each.plan_at,
            each.request.runs_on,
        )
        for age, each in new
    ]
    return insert_many(
        transaction.connection,
        "INSERT INTO runs (age, run_id, request_key, idempotency_key, repository, ref, created_at, change_key,"
        " state, plan_at, runs_on) VALUES",
        rows,
        "ON CONFLICT DO NOTHING",
    )


def _keep_and_tell(transaction: SqliteTransaction, new: Sequence[tuple[int, NewRun]]) -> None:
    """Store the requests and first statuses of new runs, and apply earlier cancel requests."""
    insert_many(
        transaction.connection, "INSERT INTO requests VALUES", [(age, each.body) for age, each in new]
    )
    runs = [each for _, each in new]
    insert_messages(transaction.connection, first_statuses(transaction.moment, runs))
    end_cancelled(transaction, runs)


def _among(transaction: SqliteTransaction, head: str, values: Sequence[Key]) -> set[Key]:
    """Return those of `values` that the table has."""
    found: set[Key] = set()
    for start in range(0, len(values), _ASKED_AT_ONCE):
        group: Sequence[Key] = values[start : start + _ASKED_AT_ONCE]
        # Padded to one length, so that the statement stays prepared.
        padded = list(group) + [group[0]] * (_ASKED_AT_ONCE - len(group))
        marks = ",".join("?" * len(padded))
        found.update(row[0] for row in transaction.connection.execute(f"{head} ({marks})", padded))
    return found


def _run_of(transaction: SqliteTransaction, new: NewRun) -> str:
    """Return the run that a request duplicates, and store this request id as its alias."""
    known = transaction.connection.execute(
        "SELECT run_id FROM runs WHERE request_key = ?1"
        " UNION ALL SELECT run_id FROM request_aliases WHERE request_key = ?1",
        (new.request_key,),
    ).fetchone()
    if known is not None:
        return str(known["run_id"])
    same = transaction.connection.execute(
        "SELECT run_id FROM runs WHERE idempotency_key = ?", (new.idempotency_key,)
    ).fetchone()
    transaction.connection.execute(
        "INSERT INTO request_aliases VALUES (?, ?)", (new.request_key, same["run_id"])
    )
    return str(same["run_id"])
