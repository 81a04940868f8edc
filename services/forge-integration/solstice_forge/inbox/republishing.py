"""Finds published requests, and has the relay publish some once more."""

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from solstice_common.messages import JobRequestV1

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

_PUBLISHED: Final = (
    "SELECT requests.row_id, requests.request_id, requests.request FROM {prefix}requests AS requests"
    " JOIN {prefix}deliveries AS deliveries ON deliveries.row_id = requests.row_id"
    " WHERE requests.published{is_true} AND deliveries.received_at >= {since}"
)


def published_in_sqlite(connection: sqlite3.Connection, since: float) -> Mapping[str, int]:
    """Return the published job requests that arrived since, each with its row."""
    statement = _PUBLISHED.format(prefix="", is_true=" = 1", since="?")
    return _job_requests(connection.execute(statement, (since,)))


def unpublish_in_sqlite(connection: sqlite3.Connection, rows: Collection[int]) -> None:
    """Mark them as not published yet."""
    connection.executemany("UPDATE requests SET published = 0 WHERE row_id = ?", [(row,) for row in rows])


async def published_in_postgresql(connection: "Connection", since: float) -> Mapping[str, int]:
    """Return the published job requests that arrived since, each with its row."""
    statement = _PUBLISHED.format(prefix="inbox_", is_true="", since="$1")
    return _job_requests([tuple(row.values()) for row in await connection.fetch(statement, since)])


async def unpublish_in_postgresql(connection: "Connection", rows: Collection[int]) -> None:
    """Mark them as not published yet."""
    await connection.execute("UPDATE inbox_requests SET published = false WHERE row_id = ANY($1)", list(rows))


def _job_requests(rows: Iterable[Any]) -> Mapping[str, int]:
    # An old order to cancel is not repeated: who was to be cancelled is not there, or has ended.
    return {
        request_id: row_id
        for row_id, request_id, body in rows
        if orjson.loads(body).get("schema_version") == JobRequestV1.VERSION
    }
