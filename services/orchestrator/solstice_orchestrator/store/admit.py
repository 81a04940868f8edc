"""Requests become runs: a batch in a few statements, each request once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from solstice_common.messages import JobRequestV1
from solstice_common.sqlite import insert_many
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.statuses import RUN_CONTEXT, describe_run, encode_status, subject
from solstice_orchestrator.store.protocol import Admission, Admitted, Duplicate, OutboxKind
from solstice_orchestrator.store.rows import key, timestamp
from solstice_orchestrator.store.transaction import Transaction

Key = TypeVar("Key", str, bytes)

_ASKED_AT_ONCE: Final = 64
"""Keys per question: few enough texts to stay prepared, and far below SQLite's limit on variables."""


@dataclass(frozen=True, slots=True)
class _NewRun:
    """A request on its way into the store, and what makes it unique."""

    age: int
    run_id: str
    request: JobRequestV1
    body: bytes
    request_key: bytes
    idempotency_key: bytes | None


def admit(
    transaction: Transaction, requests: Sequence[JobRequestV1], bodies: Sequence[bytes]
) -> Sequence[Admission]:
    """Store those that are new; say for each what it became."""
    next_age = transaction.connection.execute("SELECT ifnull(max(age), 0) + 1 FROM runs").fetchone()[0]
    new = [
        _NewRun(
            age,
            transaction.new_id(),
            request,
            body,
            key(request.request_id),
            None if request.idempotency_key is None else key(request.idempotency_key),
        )
        for age, (request, body) in enumerate(zip(requests, bodies, strict=True), start=next_age)
    ]
    known = _among(
        transaction,
        "SELECT request_key FROM request_aliases WHERE request_key IN",
        [each.request_key for each in new],
    )
    fresh = [each for each in new if each.request_key not in known] if known else new
    if _insert_runs(transaction, fresh) == len(new):
        _keep_and_tell(transaction, new)
        return [Admitted(run_id=each.run_id) for each in new]
    stored = _among(transaction, "SELECT run_id FROM runs WHERE run_id IN", [each.run_id for each in fresh])
    _keep_and_tell(transaction, [each for each in fresh if each.run_id in stored])
    return [
        Admitted(run_id=each.run_id)
        if each.run_id in stored
        else Duplicate(run_id=_run_of(transaction, each))
        for each in new
    ]


def _insert_runs(transaction: Transaction, new: Sequence[_NewRun]) -> int:
    """One statement for many rows: SQLite's module gives up the interpreter once per statement, not once per row."""
    rows = [
        (
            each.age,
            each.run_id,
            each.request_key,
            each.idempotency_key,
            each.request.repo_full_name or each.request.repo_url,
            transaction.now,
        )
        for each in new
    ]
    return insert_many(
        transaction.connection,
        "INSERT INTO runs (age, run_id, request_key, idempotency_key, repository, created_at) VALUES",
        rows,
        "ON CONFLICT DO NOTHING",
    )


def _keep_and_tell(transaction: Transaction, new: Sequence[_NewRun]) -> None:
    """What belongs to runs that turned out to be new: their requests, and their first status."""
    insert_many(
        transaction.connection, "INSERT INTO requests VALUES", [(each.age, each.body) for each in new]
    )
    at, base = timestamp(transaction.now), transaction.rules.public_url
    description = describe_run(RunState.PLANNING, "", ())
    rows = [
        (
            OutboxKind.STATUS.value,
            each.request.request_id,
            encode_status(
                subject(each.request.__dict__),
                status_id=transaction.new_id(),
                request_id=each.request.request_id,
                run_id=each.run_id,
                sequence=1,
                context=RUN_CONTEXT,
                state=RunState.PLANNING.value,
                description=description,
                occurred_at=at,
                target_url=base and f"{base}/runs/{each.run_id}",
            ),
        )
        for each in new
    ]
    insert_many(transaction.connection, "INSERT INTO outbox (kind, request_id, body) VALUES", rows)


def _among(transaction: Transaction, head: str, values: Sequence[Key]) -> set[Key]:
    """Those of `values` that are there."""
    found: set[Key] = set()
    for start in range(0, len(values), _ASKED_AT_ONCE):
        group: Sequence[Key] = values[start : start + _ASKED_AT_ONCE]
        # Padded to one length, so that the statement stays prepared.
        padded = list(group) + [group[0]] * (_ASKED_AT_ONCE - len(group))
        marks = ",".join("?" * len(padded))
        found.update(row[0] for row in transaction.connection.execute(f"{head} ({marks})", padded))
    return found


def _run_of(transaction: Transaction, new: _NewRun) -> str:
    """The run of a request that is a duplicate; from now on it is found under this request id too."""
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
