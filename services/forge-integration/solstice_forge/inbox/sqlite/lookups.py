"""Stores deliveries that wait for the forge's answer, in SQLite."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from solstice_common.storage.sqlite import insert_many
from solstice_forge.inbox.protocol import Lookup, NewDelivery

_INSERT: Final = "INSERT INTO lookups (row_id, content_key, request_id, due_at, event) VALUES"
_TAKE: Final = (
    "UPDATE lookups SET due_at = ?, attempts = attempts + 1 WHERE row_id IN"
    " (SELECT row_id FROM lookups WHERE due_at <= ? ORDER BY due_at, row_id LIMIT ?) RETURNING row_id"
)
_READ: Final = (
    "SELECT row_id, source_name, delivery_id, received_at, headers, content_key, event, attempts FROM lookups"
    " JOIN deliveries USING (row_id) WHERE row_id IN (SELECT value FROM json_each(?)) ORDER BY row_id"
)
_NEXT: Final = "SELECT min(due_at) FROM lookups WHERE due_at IS NOT NULL"
_COMPLETE: Final = (
    "INSERT INTO requests (row_id, content_key, request_id, request)"
    " SELECT row_id, content_key, request_id, ? FROM lookups WHERE row_id = ? AND due_at IS NOT NULL"
    " ON CONFLICT DO NOTHING"
)
_SETTLE: Final = "UPDATE lookups SET due_at = NULL WHERE row_id = ? AND due_at IS NOT NULL"
_LATER: Final = "UPDATE lookups SET due_at = ?, last_failure = ? WHERE row_id = ? AND due_at IS NOT NULL"
_DECLINE: Final = "UPDATE deliveries SET reason = ?, detail = ?, request_id = NULL WHERE row_id = ?"


def insert_lookups(
    connection: sqlite3.Connection, numbered: Sequence[tuple[int, NewDelivery]], unless_there: str
) -> bool:
    """Store what these deliveries lack; False when the content of one is already stored."""
    rows = [
        (row_id, each.content_key, each.request_id, each.received_at, each.lookup.decode())
        for row_id, each in numbered
        if each.lookup is not None
    ]
    return insert_many(connection, _INSERT, rows, unless_there) == len(rows)


def take(connection: sqlite3.Connection, now: float, until: float, limit: int) -> list[Lookup]:
    """Return due lookups, and lease them until `until`."""
    row_ids = [row[0] for row in connection.execute(_TAKE, (until, now, limit)).fetchall()]
    rows = connection.execute(_READ, (orjson.dumps(row_ids).decode(),)).fetchall() if row_ids else []
    return [lookup_of(row) for row in rows]


def lookup_of(row: Sequence[Any]) -> Lookup:
    """Return the lookup in a row.

    The columns are its number, source, delivery id, time, headers, content key, event and attempts.
    """
    return Lookup(
        row_id=row[0],
        source_name=row[1],
        delivery_id=row[2],
        received_at=row[3],
        traceparent=orjson.loads(row[4]).get("traceparent"),
        content_key=row[5],
        event=row[6].encode(),
        attempts=row[7],
    )


def next_at(connection: sqlite3.Connection) -> float | None:
    (due_at,) = connection.execute(_NEXT).fetchone()
    return None if due_at is None else float(due_at)


def complete(connection: sqlite3.Connection, row_id: int, request: bytes) -> bool:
    """Store the request; False when the lookup was settled before."""
    connection.execute(_COMPLETE, (request, row_id))
    return connection.execute(_SETTLE, (row_id,)).rowcount == 1


def decline(connection: sqlite3.Connection, row_id: int, reason: str, detail: str) -> bool:
    """Store why it asks for nothing; False when the lookup was settled before."""
    if connection.execute(_SETTLE, (row_id,)).rowcount != 1:
        return False
    connection.execute(_DECLINE, (reason, detail, row_id))
    return True


def postpone(connection: sqlite3.Connection, row_id: int, at: float, failure: str) -> None:
    connection.execute(_LATER, (at, failure, row_id))
