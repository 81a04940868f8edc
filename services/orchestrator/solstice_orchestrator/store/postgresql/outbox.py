"""What has to be told and is not confirmed yet, to one publisher at a time."""

import json
from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.store.postgresql.transaction import Transaction
from solstice_orchestrator.store.protocol import OutboxKind, OutboxRow

ANYTHING: Final = "SELECT 1 FROM outbox LIMIT 1"
"""Whether there is something to tell; cheap, for those who look often."""


async def take(transaction: Transaction, limit: int) -> Sequence[OutboxRow]:
    """The oldest rows, when we are the publisher or nobody is."""
    rules, now = transaction.rules, await transaction.now()
    # Short, for a killed publisher delays everybody's statuses. Should two overlap, the sequence within a context
    # tells readers which status is the newer one.
    ours = await transaction.connection.fetchval(
        "UPDATE outbox_lease SET holder = $1, until = $2 WHERE holder = $1 OR until <= $3 RETURNING true",
        rules.holder,
        now + rules.lease_seconds / 3,
        now,
    )
    if not ours:
        return ()
    rows = await transaction.connection.fetch("SELECT * FROM outbox ORDER BY row_id LIMIT $1", limit)
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


async def published(transaction: Transaction, row_ids: Sequence[int]) -> None:
    """Forget what was confirmed; with nothing left, anybody may be the next publisher."""
    await transaction.connection.execute("DELETE FROM outbox WHERE row_id = ANY($1)", list(row_ids))
    await transaction.connection.execute(
        "UPDATE outbox_lease SET until = 0 WHERE holder = $1 AND NOT EXISTS (SELECT FROM outbox)",
        transaction.rules.holder,
    )
