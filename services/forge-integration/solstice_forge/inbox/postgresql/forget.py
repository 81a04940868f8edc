"""Removes old bodies and deliveries from the inbox, in PostgreSQL."""

from typing import TYPE_CHECKING, Final

from solstice_forge.inbox.sweeping import SweepResult, step

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_TO_STRIP: Final = (
    "SELECT row_id, received_at FROM inbox_deliveries WHERE row_id > $1 ORDER BY row_id LIMIT $2"
)
_WAITS: Final = (
    "EXISTS (SELECT 1 FROM inbox_requests r WHERE r.row_id = d.row_id AND NOT r.published)"
    " OR EXISTS (SELECT 1 FROM inbox_lookups l WHERE l.row_id = d.row_id AND l.due_at IS NOT NULL)"
)
_OLDEST: Final = (
    f"SELECT row_id, received_at FROM inbox_deliveries d WHERE NOT ({_WAITS}) ORDER BY row_id LIMIT $1"  # noqa: S608  made of constants
    " FOR UPDATE SKIP LOCKED"
)
_OLDEST_COPIES: Final = (
    "SELECT row_id, received_at FROM inbox_repeats ORDER BY row_id LIMIT $1 FOR UPDATE SKIP LOCKED"
)
COUNT: Final = (
    f"SELECT (SELECT count(*) FROM inbox_deliveries d WHERE received_at < $1 AND NOT ({_WAITS}))"  # noqa: S608  made of constants
    " + (SELECT count(*) FROM inbox_repeats WHERE received_at < $1) AS forgettable"
)


async def strip(connection: "Connection", before: float, limit: int) -> SweepResult:
    # Two processes that sweep at once do so one after the other.
    stripped_to = await connection.fetchval("SELECT stripped_to FROM inbox_sweep_cursor FOR UPDATE")
    rows = await connection.fetch(_TO_STRIP, stripped_to, limit)
    expired = step([(row["row_id"], row["received_at"]) for row in rows], before, limit)
    if expired.old:
        await connection.execute(
            "UPDATE inbox_deliveries SET body = '', headers = '{}' WHERE row_id = ANY($1)", list(expired.old)
        )
    if expired.up_to is not None:
        await connection.execute("UPDATE inbox_sweep_cursor SET stripped_to = $1", expired.up_to)
    return SweepResult(rows=len(expired.old), more=expired.more)


async def forget(connection: "Connection", before: float, limit: int) -> SweepResult:
    rows = await connection.fetch(_OLDEST, limit)
    deliveries = step([(row["row_id"], row["received_at"]) for row in rows], before, limit)
    rows = await connection.fetch(_OLDEST_COPIES, limit)
    copies = step([(row["row_id"], row["received_at"]) for row in rows], before, limit)
    for table, expired in (
        ("inbox_aliases", deliveries),
        ("inbox_requests", deliveries),
        ("inbox_lookups", deliveries),
        ("inbox_request_traces", deliveries),
        ("inbox_deliveries", deliveries),
        ("inbox_repeats", copies),
    ):
        await connection.execute(f"DELETE FROM {table} WHERE row_id = ANY($1)", list(expired.old))  # noqa: S608  made of constants
    return SweepResult(rows=len(deliveries.old) + len(copies.old), more=deliveries.more or copies.more)
