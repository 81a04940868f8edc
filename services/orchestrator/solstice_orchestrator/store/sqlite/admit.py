"""Admits requests as runs in the SQLite store.

A batch takes a few statements; each request is admitted once.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from solstice_common.messages import JobRequestV1
from solstice_common.storage.sqlite import insert_many
from solstice_orchestrator.store.decisions.admit import NewRun, first_statuses, new_runs, traced_runs
from solstice_orchestrator.store.protocol import Admission, Admitted, Duplicate
from solstice_orchestrator.store.sqlite.cancel import end_cancelled
from solstice_orchestrator.store.sqlite.tables import run_traces
from solstice_orchestrator.store.sqlite.tables.transaction import (
    SqliteTransaction,
    insert_messages,
)

Key = TypeVar("Key", str, bytes)

_ROWS_PER_QUERY: Final = 64
"""Keys per query: few enough for a prepared statement, and far below SQLite's limit on variables."""


def admit(
    transaction: SqliteTransaction,
    requests: Sequence[JobRequestV1],
    bodies: Sequence[bytes],
    signatures: Sequence[str] | None = None,
    *,
    reruns: bool = False,
) -> Sequence[Admission]:
    """Store the new requests; return for each whether it was admitted or a duplicate."""
    new = new_runs(transaction.moment, requests, bodies, signatures, reruns=reruns)
    known = _among(
        transaction,
        "SELECT request_key FROM request_aliases WHERE request_key IN",
        [each.request_key for each in new],
    )
    fresh = [each for each in new if each.request_key not in known] if known else new
    next_age = transaction.connection.execute("SELECT ifnull(max(age), 0) + 1 FROM runs").fetchone()[0]
    aged = list(enumerate(fresh, start=next_age))
    if _insert_runs(transaction, aged) == len(new):
        _store_and_announce(transaction, aged)
        return [Admitted(run_id=each.run_id) for each in new]
    stored = _among(transaction, "SELECT run_id FROM runs WHERE run_id IN", [each.run_id for each in fresh])
    _store_and_announce(transaction, [(age, each) for age, each in aged if each.run_id in stored])
    return [
        Admitted(run_id=each.run_id)
        if each.run_id in stored
        else Duplicate(run_id=_run_of(transaction, each))
        for each in new
    ]


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
            each.pushed_at,
        )
        for age, each in new
    ]
    return insert_many(
        transaction.connection,
        "INSERT INTO runs (age, run_id, request_key, idempotency_key, repository, ref, created_at, change_key,"
        " state, plan_at, runs_on, pushed_at) VALUES",
        rows,
        "ON CONFLICT DO NOTHING",
    )


def _store_and_announce(transaction: SqliteTransaction, new: Sequence[tuple[int, NewRun]]) -> None:
    """Store the requests and first statuses of new runs, and apply earlier cancel requests."""
    insert_many(
        transaction.connection,
        "INSERT INTO requests (age, body, signature) VALUES",
        [(age, each.body, each.signature) for age, each in new],
    )
    runs = [each for _, each in new]
    if traced := traced_runs(transaction.moment, runs):
        run_traces.insert(transaction.connection, traced)
    insert_messages(transaction.connection, first_statuses(transaction.moment, runs))
    end_cancelled(transaction, runs)


def _among(transaction: SqliteTransaction, head: str, values: Sequence[Key]) -> set[Key]:
    """Return those of `values` that the table has."""
    stored: set[Key] = set()
    for start in range(0, len(values), _ROWS_PER_QUERY):
        group: Sequence[Key] = values[start : start + _ROWS_PER_QUERY]
        # Padded to one length, so that the statement stays prepared.
        padded = list(group) + [group[0]] * (_ROWS_PER_QUERY - len(group))
        marks = ",".join("?" * len(padded))
        stored.update(row[0] for row in transaction.connection.execute(f"{head} ({marks})", padded))
    return stored


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
