"""Gives unconfirmed messages of the outbox to one publisher at a time."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.store.outbox.batches import OutboxBatch, by_row, unpack, without
from solstice_orchestrator.store.outbox.dead_letter import runs_of_dead_letters, with_signatures
from solstice_orchestrator.store.protocol import OutboxMessage
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

_COLUMNS: Final = f"row_id, {', '.join(OutboxBatch._fields)}"
_OLDEST: Final = f"""
SELECT {_COLUMNS} FROM outbox WHERE row_id <= (
    SELECT max(row_id) FROM (
        SELECT row_id, messages, sum(messages) OVER (ORDER BY row_id) AS so_far
        FROM (SELECT row_id, messages FROM outbox ORDER BY row_id LIMIT ?1))
    WHERE so_far <= ?1 OR so_far = messages)
ORDER BY row_id
"""  # noqa: S608  made of constants
"""Whole batches, as many as fit, but at least one. A batch that is confirmed in parts is written again."""
_THESE: Final = (
    f"SELECT {_COLUMNS} FROM outbox WHERE row_id IN (SELECT value FROM json_each(?)) ORDER BY row_id"  # noqa: S608  made of constants
)


def has_messages(connection: sqlite3.Connection) -> bool:
    """Return whether the outbox has messages; a cheap query for frequent use."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is not None


def oldest_messages(transaction: SqliteTransaction, limit: int) -> Sequence[OutboxMessage]:
    """Return the oldest messages, when this store is the publisher or there is none."""
    rules = transaction.rules
    # Short, because a killed publisher delays all statuses. If two overlap, a run's sequence tells readers which status
    # is newer.
    is_publisher = transaction.connection.execute(
        "UPDATE outbox_lease SET holder = ?, until = ? WHERE holder = ? OR until <= ?",
        (rules.holder, transaction.now + rules.lease_seconds / 3, rules.holder, transaction.now),
    ).rowcount
    if not is_publisher:
        return ()
    batches = _batches(transaction, _OLDEST, limit)
    messages = [message for row_id, batch in batches.items() for message in unpack(row_id, batch)][:limit]
    runs = runs_of_dead_letters(messages)
    if not runs:
        return messages
    rows = transaction.connection.execute(
        "SELECT run_id, signature FROM runs JOIN requests USING (age)"
        " WHERE run_id IN (SELECT value FROM json_each(?)) AND signature IS NOT NULL",
        (json.dumps(runs),),
    )
    return with_signatures(messages, dict(tuple(row) for row in rows))


def forget_published(transaction: SqliteTransaction, numbers: Sequence[int]) -> None:
    """Delete the confirmed messages; with none left, any store may publish next."""
    connection, published_indexes = transaction.connection, by_row(numbers)
    for row_id, batch in _batches(transaction, _THESE, json.dumps(list(published_indexes))).items():
        left = without(batch, published_indexes[row_id])
        if left is None:
            connection.execute("DELETE FROM outbox WHERE row_id = ?", (row_id,))
        else:
            connection.execute(
                "UPDATE outbox SET body = ?, messages = ? WHERE row_id = ?",
                (left.body, left.messages, row_id),
            )
    if not has_messages(connection):
        connection.execute("UPDATE outbox_lease SET until = 0 WHERE holder = ?", (transaction.rules.holder,))


def _batches(transaction: SqliteTransaction, statement: str, argument: object) -> Mapping[int, OutboxBatch]:
    """Return batches by their row ids, in that order."""
    rows = transaction.connection.execute(statement, (argument,))
    return {row_id: OutboxBatch(*columns) for row_id, *columns in rows}
