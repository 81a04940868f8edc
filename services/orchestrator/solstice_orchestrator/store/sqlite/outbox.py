"""What has to be told and is not confirmed yet, to one publisher at a time."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.store.outbox.batches import Parcel, by_row, unpack, without
from solstice_orchestrator.store.protocol import Tiding
from solstice_orchestrator.store.sqlite.tables.transaction import Transaction

_COLUMNS: Final = f"row_id, {', '.join(Parcel._fields)}"
_OLDEST: Final = f"""
SELECT {_COLUMNS} FROM outbox WHERE row_id <= (
    SELECT max(row_id) FROM (
        SELECT row_id, messages, sum(messages) OVER (ORDER BY row_id) AS so_far
        FROM (SELECT row_id, messages FROM outbox ORDER BY row_id LIMIT ?1))
    WHERE so_far <= ?1 OR so_far = messages)
ORDER BY row_id
"""  # noqa: S608  made of constants
"""Whole parcels, as many as fit, for one that is confirmed in parts is written again; the first in any case."""
_THESE: Final = (
    f"SELECT {_COLUMNS} FROM outbox WHERE row_id IN (SELECT value FROM json_each(?)) ORDER BY row_id"  # noqa: S608  made of constants
)


def anything(connection: sqlite3.Connection) -> bool:
    """Whether there is something to tell; cheap, for those who look often."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is not None


def take(transaction: Transaction, limit: int) -> Sequence[Tiding]:
    """The oldest messages, when we are the publisher or nobody is."""
    rules = transaction.rules
    # Short, for a killed publisher delays everybody's statuses. Should two overlap, a run's sequence tells readers
    # which status is the newer one.
    ours = transaction.connection.execute(
        "UPDATE outbox_lease SET holder = ?, until = ? WHERE holder = ? OR until <= ?",
        (rules.holder, transaction.now + rules.lease_seconds / 3, rules.holder, transaction.now),
    ).rowcount
    if not ours:
        return ()
    parcels = _parcels(transaction, _OLDEST, limit)
    return [tiding for row_id, parcel in parcels.items() for tiding in unpack(row_id, parcel)][:limit]


def published(transaction: Transaction, numbers: Sequence[int]) -> None:
    """Forget what was confirmed; with nothing left, anybody may be the next publisher."""
    connection, told = transaction.connection, by_row(numbers)
    for row_id, parcel in _parcels(transaction, _THESE, json.dumps(list(told))).items():
        left = without(parcel, told[row_id])
        if left is None:
            connection.execute("DELETE FROM outbox WHERE row_id = ?", (row_id,))
        else:
            connection.execute(
                "UPDATE outbox SET body = ?, messages = ? WHERE row_id = ?",
                (left.body, left.messages, row_id),
            )
    if not anything(connection):
        connection.execute("UPDATE outbox_lease SET until = 0 WHERE holder = ?", (transaction.rules.holder,))


def _parcels(transaction: Transaction, statement: str, argument: object) -> Mapping[int, Parcel]:
    """By their row ids, in that order."""
    rows = transaction.connection.execute(statement, (argument,))
    return {row_id: Parcel(*columns) for row_id, *columns in rows}
