"""The statements on dead-letter queues of the embedded broker; each function runs inside one transaction."""

import json
import sqlite3
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.dead_letters.hashed_bodies import HashedBody, LargeBody
from solstice_common.broker.embedded.rows import NOW
from solstice_common.broker.headers import BROKER_COUNTERS
from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus

_QUEUE_ID = "(SELECT queue_id FROM queues WHERE name = ?)"
_FREE = "NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.message = messages.message)"
_OF_QUEUE = f"FROM messages WHERE queue_id = {_QUEUE_ID} AND {_FREE}"
_PROPERTIES = "headers, type, correlation_id, message_id, priority, published_at, content_type, app_id"
_COLUMNS = f"body, {_PROPERTIES}"
_WAITING = f"SELECT message, length(body) {_OF_QUEUE} ORDER BY message LIMIT ?"
_READ = f"SELECT {_PROPERTIES} FROM messages WHERE message = ?"  # noqa: S608  constants only
_PURGE = f"DELETE {_OF_QUEUE}"
_INSERT = (
    f"INSERT INTO messages (queue_id, exchange, routing_key, {_COLUMNS}, stored_at)"  # noqa: S608  constants only
    f" VALUES ({_QUEUE_ID}, '', ?{', ?' * 9}, {NOW})"
)
_PIECE_BYTES = 1 << 20

NumberedSize = tuple[int, int]
"""A dead letter's number, and the size of its body."""


def waiting(connection: sqlite3.Connection, queue: str, limit: int) -> list[NumberedSize]:
    """Up to `limit` dead letters that no consumer holds, the oldest first."""
    return connection.execute(_WAITING, (queue, limit)).fetchall()


def read(
    connection: sqlite3.Connection, queue: str, numbers: Collection[int], *, whole: bool
) -> list[tuple[int, DeadLetter]]:
    """Return those of these dead letters that still exist.

    Large bodies are cut, unless they are wanted `whole`.
    """
    return [
        (number, _dead_letter(queue, row, *_body(connection, number, whole=whole)))
        for number in numbers
        for row in connection.execute(_READ, (number,))
    ]


def _dead_letter(queue: str, row: tuple[Any, ...], body: bytes, large: LargeBody | None) -> DeadLetter:
    headers, kind, correlation_id, message_id, priority, published_at, content_type, app_id = row
    return DeadLetter(
        queue=queue,
        body=body,
        large=large,
        headers=json.loads(headers),
        type=kind,
        correlation_id=correlation_id,
        message_id=message_id,
        priority=priority,
        timestamp=datetime.fromtimestamp(published_at, UTC),
        content_type=content_type,
        app_id=app_id,
    )


def _body(connection: sqlite3.Connection, number: int, *, whole: bool) -> tuple[bytes, LargeBody | None]:
    with connection.blobopen("messages", "body", number, readonly=True) as blob:
        body = HashedBody(len(blob), whole=whole)
        while not body.is_complete:
            body.add(blob.read(_PIECE_BYTES))
    return body.read()


def hold(connection: sqlite3.Connection, queue: str, consumer_id: int, limit: int) -> list[NumberedSize]:
    """Like `waiting`, and assign them to the consumer."""
    held = waiting(connection, queue, limit)
    connection.executemany(
        "INSERT INTO deliveries VALUES (?, ?)", [(number, consumer_id) for number, _ in held]
    )
    return held


def remove(connection: sqlite3.Connection, consumer_id: int, numbers: Collection[int]) -> int:
    """Remove messages that the consumer still holds; return how many."""
    return connection.execute(
        # From the numbers: the consumer may hold a thousand times as many.
        "DELETE FROM messages WHERE message IN (SELECT value FROM json_each(?)) AND EXISTS"
        " (SELECT 1 FROM deliveries WHERE deliveries.message = messages.message AND consumer_id = ?)",
        (json.dumps(list(numbers)), consumer_id),
    ).rowcount


def release(connection: sqlite3.Connection, consumer_id: int) -> int:
    """Return the consumer's messages uncounted, and remove the consumer; return how many."""
    released = connection.execute("DELETE FROM deliveries WHERE consumer_id = ?", (consumer_id,)).rowcount
    connection.execute("DELETE FROM consumers WHERE consumer_id = ?", (consumer_id,))
    return released


def purge(connection: sqlite3.Connection, queue: str) -> int:
    """Remove every message of the queue that no consumer holds; return how many."""
    return connection.execute(
        _PURGE,
        (queue,),
    ).rowcount


def put_back(
    connection: sqlite3.Connection, queue: str, dead_letters: Sequence[DeadLetter]
) -> list[Published]:
    """Add dead letters at the queue's end."""
    if connection.execute("SELECT 1 FROM queues WHERE name = ?", (queue,)).fetchone() is None:
        return [Published(PublishStatus.UNROUTABLE, f"there is no queue {queue!r}")] * len(dead_letters)
    connection.executemany(
        _INSERT,
        [
            (
                queue,
                queue,
                each.body,
                json.dumps({k: v for k, v in each.headers.items() if k not in BROKER_COUNTERS}),
                each.type,
                each.correlation_id,
                each.message_id,
                each.priority,
                0 if each.timestamp is None else each.timestamp.timestamp(),
                each.content_type or "",
                each.app_id or "",
            )
            for each in dead_letters
        ],
    )
    return [CONFIRMED] * len(dead_letters)
