"""Stores deliveries that wait for the forge's answer, in PostgreSQL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from solstice_forge.inbox.protocol import Lookup
from solstice_forge.inbox.sqlite.lookups import lookup_of

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_TAKE: Final = (
    "UPDATE inbox_lookups SET due_at = $1, attempts = attempts + 1 WHERE row_id = ANY(ARRAY("
    "SELECT row_id FROM inbox_lookups WHERE due_at <= $2 ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED))"
    " RETURNING row_id"
)
_READ: Final = (
    "SELECT row_id, source_name, delivery_id, received_at, headers, content_key, event, attempts FROM inbox_lookups"
    " JOIN inbox_deliveries USING (row_id) WHERE row_id = ANY($1) ORDER BY row_id"
)
NEXT: Final = "SELECT min(due_at) AS due_at FROM inbox_lookups WHERE due_at IS NOT NULL"
_SETTLE: Final = (
    "UPDATE inbox_lookups SET due_at = NULL WHERE row_id = $1 AND due_at IS NOT NULL RETURNING true"
)
_COMPLETE: Final = (
    "INSERT INTO inbox_requests (row_id, content_key, request_id, request)"
    " SELECT row_id, content_key, request_id, $2 FROM inbox_lookups WHERE row_id = $1 ON CONFLICT DO NOTHING"
)
_DECLINE: Final = "UPDATE inbox_deliveries SET reason = $2, detail = $3, request_id = NULL WHERE row_id = $1"
LATER: Final = (
    "UPDATE inbox_lookups SET due_at = $2, last_failure = $3 WHERE row_id = $1 AND due_at IS NOT NULL"
)


async def take(connection: "Connection", now: float, until: float, limit: int) -> Sequence[Lookup]:
    """Return due lookups, and lease them until `until`."""
    row_ids = [row["row_id"] for row in await connection.fetch(_TAKE, until, now, limit)]
    return [lookup_of(tuple(row)) for row in await connection.fetch(_READ, row_ids)] if row_ids else []


async def complete(connection: "Connection", row_id: int, request: bytes) -> bool:
    """Store the request; False when the lookup was settled before."""
    if not await connection.fetchval(_SETTLE, row_id):
        return False
    await connection.execute(_COMPLETE, row_id, request)
    return True


async def decline(connection: "Connection", row_id: int, reason: str, detail: str) -> bool:
    """Store why it asks for nothing; False when the lookup was settled before."""
    if not await connection.fetchval(_SETTLE, row_id):
        return False
    await connection.execute(_DECLINE, row_id, reason, detail)
    return True
