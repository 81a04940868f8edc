"""The statements of the embedded broker; each function runs inside one transaction."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from solstice_common.broker.headers import without_broker_headers
from solstice_common.broker.protocol import (
    CONFIRMED,
    NO_HEADERS,
    Delivered,
    Delivery,
    Message,
    Published,
    PublishStatus,
    QueueDepth,
)
from solstice_common.errors import ConfigurationError, TopologyMismatch
from solstice_common.topology import Binding, Exchange, Queue, Topology

HEADERS_BYTES = 131_064
"""The size of RabbitMQ's default frame: headers that RabbitMQ refuses are refused here, too."""

_HEADERS = 5
MessageRow = tuple[Any, ...]
"""The columns of one message.

exchange, routing_key, message_id, type, correlation_id, headers, priority, published_at, content_type, app_id, body
"""

NOW = "(julianday('now') - 2440587.5) * 86400"
"""Seconds since the epoch, in SQL: `unixepoch` has whole seconds before SQLite 3.42."""
_INSERT = (
    "INSERT INTO messages (queue_id, exchange, routing_key, message_id, type, correlation_id, headers, priority,"  # noqa: S608  constants only
    f" published_at, content_type, app_id, body, stored_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {NOW})"
)
_READY = (
    "FROM messages WHERE queue_id = (SELECT queue_id FROM queues WHERE name = ?)"
    " AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.message = messages.message)"
)
# Of both tables, the deliveries are few.
_PENDING = "SELECT count(*) FROM deliveries CROSS JOIN messages USING (message) WHERE queue_id = ?"
_OLDEST_SECONDS = f"SELECT {NOW} - stored_at FROM messages WHERE queue_id = ? ORDER BY message LIMIT 1"  # noqa: S608  constants only
_UNSETTLED = "message IN (SELECT message FROM deliveries WHERE consumer_id = ?)"
_CHOSEN = f"{_UNSETTLED} AND message IN (SELECT value FROM json_each(?))"  # noqa: S608  constants only
_RETURN = "UPDATE messages SET returned = returned + 1 WHERE "
_FREE = "DELETE FROM deliveries WHERE "
_FORGET = "DELETE FROM messages WHERE "


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedMessage:
    """A delivered message on its way to the dead-letter exchange."""

    message: int
    headers: Mapping[str, object]
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledMessages:
    """Verdicts on deliveries of one consumer, by the messages' numbers."""

    acked: Sequence[int]
    retried: Sequence[int]
    refused: Sequence[RefusedMessage]


def row_of(message: Message, message_id: str) -> MessageRow:
    """Return the row of a message to publish.

    ValueError or TypeError for what no broker can carry.
    """
    for text in (message.exchange, message.routing_key, message.type, message.correlation_id or ""):
        text.encode()
    return (
        message.exchange,
        message.routing_key,
        message_id,
        message.type,
        message.correlation_id,
        json.dumps(without_broker_headers(message.headers)) if message.headers else "{}",
        message.priority,
        message.timestamp.timestamp(),
        message.content_type,
        message.app_id,
        message.body,
    )


def store(connection: sqlite3.Connection, rows: Sequence[MessageRow]) -> list[Published]:
    """Put each message into every queue bound for it; one outcome per message, in order."""
    routes: dict[tuple[str, str], Sequence[int] | Published] = {}
    outcomes: list[Published] = []
    copies: list[tuple[Any, ...]] = []
    for row in rows:
        if len(row[_HEADERS]) > HEADERS_BYTES:
            outcomes.append(
                Published(
                    PublishStatus.REJECTED,
                    f"its headers take {len(row[_HEADERS])} bytes, this broker carries {HEADERS_BYTES}",
                )
            )
            continue
        key = (row[0], row[1])
        route = routes.get(key)
        if route is None:
            route = routes[key] = _publishing_route(connection, *key)
        if isinstance(route, Published):
            outcomes.append(route)
            continue
        outcomes.append(CONFIRMED)
        for queue_id in route:
            copies.append((queue_id, *row))  # noqa: PERF401  two results of one loop
    connection.executemany(_INSERT, copies)
    return outcomes


def claim(connection: sqlite3.Connection, queue: str, consumer_id: int, limit: int) -> list[Delivery]:
    """Deliver up to `limit` ready messages of `queue` to the consumer, oldest first."""
    rows = connection.execute(
        "SELECT message, body, exchange, routing_key, type, correlation_id, message_id, headers, returned"
        f" {_READY} ORDER BY message LIMIT ?",
        (queue, limit),
    ).fetchall()
    connection.executemany("INSERT INTO deliveries VALUES (?, ?)", [(row[0], consumer_id) for row in rows])
    return [
        Delivered(
            tag=message,
            body=body,
            exchange=exchange,
            routing_key=routing_key,
            type=kind,
            correlation_id=correlation_id,
            message_id=message_id,
            headers=_headers(headers, returned),
            redelivered=returned > 0,
        )
        for message, body, exchange, routing_key, kind, correlation_id, message_id, headers, returned in rows
    ]


def settle(connection: sqlite3.Connection, queue: str, consumer_id: int, verdicts: SettledMessages) -> None:
    """Carry out verdicts on messages that the consumer still holds; ignore others."""
    done = list(verdicts.acked)
    if verdicts.retried:
        chosen = (consumer_id, json.dumps(verdicts.retried))
        connection.execute(_RETURN + _CHOSEN, chosen)
        connection.execute(_FREE + _CHOSEN, chosen)
    if verdicts.refused:
        _dead_letter(connection, queue, consumer_id, verdicts.refused)
        done.extend(dead_letter.message for dead_letter in verdicts.refused)
    if done:
        connection.execute(_FORGET + _CHOSEN, (consumer_id, json.dumps(done)))


def add_owner(connection: sqlite3.Connection, token: str, name: str) -> int:
    return _inserted(connection.execute("INSERT INTO owners (token, name) VALUES (?, ?)", (token, name)))


def owner_tokens(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT token FROM owners")]


def add_consumer(connection: sqlite3.Connection, owner_id: int, queue: str) -> int:
    return _inserted(
        connection.execute("INSERT INTO consumers (owner_id, queue) VALUES (?, ?)", (owner_id, queue))
    )


def remove_consumer(connection: sqlite3.Connection, consumer_id: int) -> int:
    """Return the consumer's messages to its queue; return how many."""
    returned = connection.execute(_RETURN + _UNSETTLED, (consumer_id,)).rowcount
    connection.execute(_FREE + _UNSETTLED, (consumer_id,))
    connection.execute("DELETE FROM consumers WHERE consumer_id = ?", (consumer_id,))
    return returned


def remove_owner(connection: sqlite3.Connection, token: str) -> int:
    """Return the messages of all consumers of the owner; return how many. Safe to repeat."""
    consumers = connection.execute(
        "SELECT consumer_id FROM consumers JOIN owners USING (owner_id) WHERE token = ?", (token,)
    ).fetchall()
    returned = sum(remove_consumer(connection, row[0]) for row in consumers)
    connection.execute("DELETE FROM owners WHERE token = ?", (token,))
    return returned


def depth(connection: sqlite3.Connection, queue: str) -> QueueDepth | None:
    found = connection.execute("SELECT queue_id FROM queues WHERE name = ?", (queue,)).fetchone()
    if found is None:
        return None
    ready = connection.execute(f"SELECT count(*) {_READY}", (queue,)).fetchone()[0]
    consumers = connection.execute("SELECT count(*) FROM consumers WHERE queue = ?", (queue,)).fetchone()[0]
    pending = connection.execute(_PENDING, found).fetchone()[0]
    oldest = connection.execute(_OLDEST_SECONDS, found).fetchone()
    return QueueDepth(
        ready=ready,
        consumers=consumers,
        pending=pending,
        oldest_seconds=None if oldest is None or oldest[0] is None else max(0.0, oldest[0]),
    )


def declare(connection: sqlite3.Connection, topology: Topology) -> None:
    """Create missing objects, and route dead letters that waited for a queue."""
    for exchange in topology.exchanges:
        _declare_exchange(connection, exchange)
    for queue in topology.queues:
        _declare_queue(connection, queue)
    for binding in topology.bindings:
        _declare_binding(connection, binding)
    for exchange_name in {binding.exchange for binding in topology.bindings}:
        _route_waiting(connection, exchange_name)


def _declare_exchange(connection: sqlite3.Connection, exchange: Exchange) -> None:
    connection.execute("INSERT OR IGNORE INTO exchanges VALUES (?, ?)", (exchange.name, exchange.kind))
    found = connection.execute("SELECT kind FROM exchanges WHERE name = ?", (exchange.name,)).fetchone()[0]
    if found != exchange.kind:
        raise TopologyMismatch("exchange", exchange.name, {"type": exchange.kind}, f"type={found!r}")


def _declare_queue(connection: sqlite3.Connection, queue: Queue) -> None:
    declared = json.dumps(dict(queue.arguments), sort_keys=True)
    connection.execute("INSERT OR IGNORE INTO queues (name, arguments) VALUES (?, ?)", (queue.name, declared))
    found = json.loads(
        connection.execute("SELECT arguments FROM queues WHERE name = ?", (queue.name,)).fetchone()[0]
    )
    if _comparable(found) != _comparable(queue.arguments):
        on_broker = ", ".join(f"{key}={value!r}" for key, value in sorted(found.items())) or "no arguments"
        raise TopologyMismatch("queue", queue.name, queue.arguments, on_broker)


def _comparable(arguments: Mapping[str, object]) -> dict[str, object]:
    # As on RabbitMQ, the default type named and no type named are the same.
    return {key: value for key, value in arguments.items() if (key, value) != ("x-queue-type", "classic")}


def _declare_binding(connection: sqlite3.Connection, binding: Binding) -> None:
    try:
        connection.execute(
            "INSERT OR IGNORE INTO bindings"
            " VALUES (?, ?, ifnull((SELECT queue_id FROM queues WHERE name = ?), -1))",
            (binding.exchange, binding.routing_key, binding.queue),
        )
    except sqlite3.IntegrityError:
        raise ConfigurationError(
            f"the queue {binding.queue!r} cannot be bound to the exchange {binding.exchange!r}: one of them does not exist"
        ) from None


def _publishing_route(connection: sqlite3.Connection, exchange: str, key: str) -> Sequence[int] | Published:
    """Return the queues that a publish reaches, or its outcome without any."""
    if queues := _route(connection, exchange, key):
        return queues
    if connection.execute("SELECT 1 FROM exchanges WHERE name = ?", (exchange,)).fetchone() is None:
        return Published(PublishStatus.REJECTED, f"there is no exchange {exchange!r}")
    return Published(
        PublishStatus.UNROUTABLE, f"no queue is bound to the exchange {exchange!r} for the key {key!r}"
    )


def _route(connection: sqlite3.Connection, exchange: str, key: str) -> list[int]:
    rows = connection.execute(
        "SELECT DISTINCT queue_id FROM bindings JOIN exchanges ON exchanges.name = bindings.exchange"
        " WHERE exchange = ? AND (kind = 'fanout' OR routing_key = ?) ORDER BY queue_id",
        (exchange, key),
    )
    return [row[0] for row in rows]


def _dead_letter(
    connection: sqlite3.Connection, queue: str, consumer_id: int, dead_letters: Sequence[RefusedMessage]
) -> None:
    """Copy refused messages to the queues of the dead-letter exchange.

    A queue without such an exchange drops them, as RabbitMQ does. An exchange without a queue keeps them until one
    is bound (`queue_id` NULL), as dead-lettering at-least-once does.
    """
    row = connection.execute("SELECT arguments FROM queues WHERE name = ?", (queue,)).fetchone()
    arguments = json.loads(row[0]) if row else {}
    exchange = arguments.get("x-dead-letter-exchange")
    if exchange is None:
        return
    for dead_letter in dead_letters:
        origin = connection.execute(
            "SELECT routing_key FROM messages JOIN deliveries USING (message) WHERE message = ? AND consumer_id = ?",
            (dead_letter.message, consumer_id),
        ).fetchone()
        if origin is None:
            continue
        key = arguments.get("x-dead-letter-routing-key", origin[0])
        targets: Sequence[int | None] = _route(connection, exchange, key) or [None]
        for target in targets:
            connection.execute(
                "INSERT INTO messages (queue_id, exchange, routing_key, message_id, headers,"  # noqa: S608  constants only
                " type, correlation_id, priority, published_at, content_type, app_id, body, stored_at)"
                f" SELECT ?, ?, ?, ?, ?, type, correlation_id, priority, published_at, content_type, app_id, body, {NOW}"
                " FROM messages WHERE message = ?",
                (
                    target,
                    exchange,
                    key,
                    dead_letter.message_id,
                    json.dumps(dead_letter.headers),
                    dead_letter.message,
                ),
            )


def _route_waiting(connection: sqlite3.Connection, exchange: str) -> None:
    waiting = connection.execute(
        "SELECT message, exchange, routing_key, message_id, type, correlation_id, headers, priority, published_at,"
        " content_type, app_id, body FROM messages WHERE queue_id IS NULL AND exchange = ? ORDER BY message",
        (exchange,),
    ).fetchall()
    for message, *row in waiting:
        if targets := _route(connection, exchange, row[1]):
            connection.executemany(_INSERT, [(target, *row) for target in targets])
            connection.execute("DELETE FROM messages WHERE message = ?", (message,))


def _headers(stored: str, returned: int) -> Mapping[str, object]:
    if not returned:
        return NO_HEADERS if stored == "{}" else json.loads(stored)
    return {**json.loads(stored), "x-delivery-count": returned}


def _inserted(cursor: sqlite3.Cursor) -> int:
    row_id = cursor.lastrowid
    assert row_id is not None  # noqa: S101  an INSERT has one; for mypy
    return row_id
