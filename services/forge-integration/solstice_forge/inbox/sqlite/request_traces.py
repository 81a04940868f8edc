"""Stores which published requests wait to be traced, in SQLite."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from solstice_common.storage.sqlite import insert_many
from solstice_forge.inbox.traced_requests import COLUMNS, TracedRequest, traced_request

_INSERT: Final = "INSERT INTO request_traces (row_id, stored_at, sent_at, confirmed_at) VALUES"
_TAKE: Final = (
    "UPDATE request_traces SET taken_until = ? WHERE row_id IN"
    " (SELECT row_id FROM request_traces WHERE taken_until <= ? ORDER BY row_id LIMIT ?) RETURNING row_id"
)
_READ: Final = (
    f"SELECT {', '.join(f'deliveries.{name}' if name == 'row_id' else name for name in COLUMNS)}"  # noqa: S608  made of constants
    " FROM request_traces JOIN deliveries USING (row_id) JOIN requests USING (row_id)"
    " WHERE row_id IN (SELECT value FROM json_each(?)) ORDER BY row_id"
)


def insert(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Store these rows; a request that was published again has its row already."""
    insert_many(connection, _INSERT, rows, "ON CONFLICT DO NOTHING")


def wait(connection: sqlite3.Connection) -> bool:
    """Whether any request waits to be traced."""
    return connection.execute("SELECT 1 FROM request_traces LIMIT 1").fetchone() is not None


def take(connection: sqlite3.Connection, now: float, until: float, limit: int) -> list[TracedRequest]:
    """Return requests that wait to be traced, and lease them until `until`."""
    row_ids = [row[0] for row in connection.execute(_TAKE, (until, now, limit)).fetchall()]
    rows = connection.execute(_READ, (orjson.dumps(row_ids).decode(),)).fetchall() if row_ids else []
    return [traced_request(row) for row in rows]


def remove(connection: sqlite3.Connection, row_ids: str) -> None:
    """Remove these rows; `row_ids` is a JSON list."""
    connection.execute(
        "DELETE FROM request_traces WHERE row_id IN (SELECT value FROM json_each(?))", (row_ids,)
    )
