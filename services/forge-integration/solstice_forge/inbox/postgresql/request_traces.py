"""Stores which published requests wait to be traced, in PostgreSQL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from solstice_forge.inbox.traced_requests import COLUMNS, TracedRequest, traced_request

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

# One statement with the marks: what is published also waits to be traced. A request is published again after a crash,
# and then has its row already.
MARK_AND_INSERT: Final = (
    "WITH marked AS (UPDATE inbox_requests SET published = true, attempts = attempts + 1 WHERE row_id = ANY($1))"
    " INSERT INTO inbox_request_traces (row_id, stored_at, sent_at, confirmed_at)"
    " SELECT * FROM unnest($2::bigint[], $3::float8[], $4::float8[], $5::float8[]) ON CONFLICT DO NOTHING"
)
_TAKE: Final = (
    "UPDATE inbox_request_traces SET taken_until = $1 WHERE row_id = ANY(ARRAY("
    "SELECT row_id FROM inbox_request_traces WHERE taken_until <= $2 ORDER BY row_id LIMIT $3 FOR UPDATE SKIP LOCKED))"
    " RETURNING row_id"
)
_READ: Final = (
    f"SELECT {', '.join(COLUMNS)} FROM inbox_request_traces"  # noqa: S608  made of constants
    " JOIN inbox_deliveries USING (row_id) JOIN inbox_requests USING (row_id)"
    " WHERE row_id = ANY($1) ORDER BY row_id"
)
ANY: Final = "SELECT 1 FROM inbox_request_traces LIMIT 1"
REMOVE: Final = "DELETE FROM inbox_request_traces WHERE row_id = ANY($1)"


async def take(connection: "Connection", now: float, until: float, limit: int) -> Sequence[TracedRequest]:
    """Return requests that wait to be traced, and lease them until `until`."""
    row_ids = [row["row_id"] for row in await connection.fetch(_TAKE, until, now, limit)]
    return [traced_request(tuple(row)) for row in await connection.fetch(_READ, row_ids)] if row_ids else []
