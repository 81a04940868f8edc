"""Gives unconfirmed messages of the outbox to one publisher at a time."""

from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.store.outbox.batches import OutboxBatch, by_row, unpack, without
from solstice_orchestrator.store.outbox.dead_letter import runs_of_dead_letters, with_signatures
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.protocol import OutboxMessage

HAS_MESSAGES: Final = "SELECT 1 FROM outbox LIMIT 1"
"""Whether the outbox has messages; a cheap query for frequent use."""

_COLUMNS: Final = f"row_id, {', '.join(OutboxBatch._fields)}"
_OLDEST: Final = f"""
SELECT {_COLUMNS} FROM outbox WHERE row_id <= (
    SELECT max(row_id) FROM (
        SELECT row_id, messages, sum(messages) OVER (ORDER BY row_id) AS so_far
        FROM (SELECT row_id, messages FROM outbox ORDER BY row_id LIMIT $1) AS oldest) AS counted
    WHERE so_far <= $1 OR so_far = messages)
ORDER BY row_id
"""  # noqa: S608  made of constants
"""Whole batches, as many as fit, but at least one. A batch that is confirmed in parts is written again."""
_THESE: Final = f"SELECT {_COLUMNS} FROM outbox WHERE row_id = ANY($1) ORDER BY row_id FOR UPDATE"  # noqa: S608  made of constants


async def oldest_messages(transaction: PostgreSQLTransaction, limit: int) -> Sequence[OutboxMessage]:
    """Return the oldest messages, when this store is the publisher or there is none."""
    rules, now = transaction.rules, await transaction.now()
    # Short, because a killed publisher delays all statuses. If two overlap, the sequence within a context tells readers
    # which status is newer.
    is_publisher = await transaction.connection.fetchval(
        "UPDATE outbox_lease SET holder = $1, until = $2 WHERE holder = $1 OR until <= $3 RETURNING true",
        rules.holder,
        now + rules.lease_seconds / 3,
        now,
    )
    if not is_publisher:
        return ()
    batches = await _batches(transaction, _OLDEST, limit)
    messages = [message for row_id, batch in batches.items() for message in unpack(row_id, batch)][:limit]
    runs = runs_of_dead_letters(messages)
    if not runs:
        return messages
    rows = await transaction.connection.fetch(
        "SELECT run_id, signature FROM requests WHERE run_id = ANY($1) AND signature IS NOT NULL", runs
    )
    return with_signatures(messages, {row["run_id"]: row["signature"] for row in rows})


async def forget_published(transaction: PostgreSQLTransaction, numbers: Sequence[int]) -> None:
    """Delete the confirmed messages; with none left, any store may publish next."""
    published_indexes = by_row(numbers)
    batches = await _batches(transaction, _THESE, list(published_indexes))
    left = {row_id: without(batch, published_indexes[row_id]) for row_id, batch in batches.items()}
    execute = transaction.connection.execute
    await execute(
        "DELETE FROM outbox WHERE row_id = ANY($1)",
        [row_id for row_id, batch in left.items() if batch is None],
    )
    for row_id, batch in left.items():
        if batch is not None:
            await execute(
                "UPDATE outbox SET body = $2, messages = $3 WHERE row_id = $1",
                row_id,
                batch.body,
                batch.messages,
            )
    await execute(
        "UPDATE outbox_lease SET until = 0 WHERE holder = $1 AND NOT EXISTS (SELECT FROM outbox)",
        transaction.rules.holder,
    )


async def _batches(
    transaction: PostgreSQLTransaction, statement: str, argument: object
) -> Mapping[int, OutboxBatch]:
    """Return batches by their row ids, in that order."""
    rows = await transaction.connection.fetch(statement, argument)
    return {row_id: OutboxBatch(*columns) for row_id, *columns in rows}
