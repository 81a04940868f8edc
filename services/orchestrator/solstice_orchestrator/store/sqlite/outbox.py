"""What has to be told and is not confirmed yet, to one publisher at a time."""

import json
import sqlite3
from collections.abc import Sequence

from solstice_orchestrator.store.protocol import OutboxKind, OutboxRow
from solstice_orchestrator.store.sqlite.transaction import Transaction


def anything(connection: sqlite3.Connection) -> bool:
    """Whether there is something to tell; cheap, for those who look often."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is not None


def take(transaction: Transaction, limit: int) -> Sequence[OutboxRow]:
    """The oldest rows, when we are the publisher or nobody is."""
    rules = transaction.rules
    # Short, for a killed publisher delays everybody's statuses. Should two overlap, a run's sequence tells readers
    # which status is the newer one.
    ours = transaction.connection.execute(
        "UPDATE outbox_lease SET holder = ?, until = ? WHERE holder = ? OR until <= ?",
        (rules.holder, transaction.now + rules.lease_seconds / 3, rules.holder, transaction.now),
    ).rowcount
    if not ours:
        return ()
    rows = transaction.connection.execute("SELECT * FROM outbox ORDER BY row_id LIMIT ?", (limit,))
    return [
        OutboxRow(
            row_id=row["row_id"],
            request_id=row["request_id"],
            body=row["body"],
            kind=OutboxKind(row["kind"]),
            headers=json.loads(row["headers"]),
        )
        for row in rows
    ]


def published(transaction: Transaction, row_ids: Sequence[int]) -> None:
    """Forget what was confirmed; with nothing left, anybody may be the next publisher."""
    connection = transaction.connection
    connection.execute(
        "DELETE FROM outbox WHERE row_id IN (SELECT value FROM json_each(?))", (json.dumps(list(row_ids)),)
    )
    if not anything(connection):
        connection.execute("UPDATE outbox_lease SET until = 0 WHERE holder = ?", (transaction.rules.holder,))
