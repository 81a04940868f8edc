"""Writes deliveries to SQLite: a group in a few statements, without duplicates."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from solstice_common.storage.sqlite import insert_many
from solstice_forge.inbox.frames import compressed
from solstice_forge.inbox.keep_results import (
    DUPLICATE_CONTENT,
    DUPLICATE_DELIVERY,
    contents_of,
    duplicate,
    new,
    repeated_by,
)
from solstice_forge.inbox.protocol import KeepResult, NewDelivery
from solstice_forge.inbox.sqlite.lookups import insert_lookups

_INSERT_DELIVERIES: Final = (
    "INSERT INTO deliveries (row_id, source_name, delivery_id, event_name, received_at, reason, detail, request_id,"
    " headers, body, repo_full_name) VALUES"
)
_INSERT_REQUESTS: Final = "INSERT INTO requests (row_id, content_key, request_id, request) VALUES"
_INSERT_ALIASES: Final = "INSERT INTO aliases (content_key, row_id) VALUES"
_INSERT_REPEATS: Final = (
    "INSERT INTO repeats (row_id, source_name, delivery_id, event_name, received_at, repo_full_name, reason, repeats,"
    " request_id) VALUES"
)
_UNLESS_THERE: Final = "ON CONFLICT DO NOTHING"

_Known = dict[object, tuple[int, str | None]]
"""The number and request of the delivery with that id or content."""


def keep_all(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult]:
    """Store new deliveries in order, and record copies; return each one's result."""
    # Nearly always all are new. A query first would then only add statements, at each of which Python's module
    # releases the interpreter, and must wait for a busy event loop to get it back.
    if not any(delivery.other_content_keys for delivery in deliveries) and _insert(connection, deliveries):
        return [new(delivery) for delivery in deliveries]
    fresh, copies = _sorted_out(connection, deliveries)
    if fresh:
        _insert(connection, fresh)
    answers = _remember(connection, copies)
    return [answers.get(id(delivery)) or new(delivery) for delivery in deliveries]


def _sorted_out(
    connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]
) -> tuple[list[NewDelivery], list[NewDelivery]]:
    """Return new deliveries, and those that repeat a stored or an earlier one."""
    ids: set[object] = set(_stored_by_id(connection, deliveries))
    contents: set[object] = set(_stored_by_content(connection, deliveries))
    fresh: list[NewDelivery] = []
    copies: list[NewDelivery] = []
    for delivery in deliveries:
        name = (delivery.source_name, delivery.delivery_id)
        keys = contents_of(delivery)
        if name in ids or not contents.isdisjoint(keys):
            copies.append(delivery)
            continue
        fresh.append(delivery)
        ids.add(name)
        contents.update(keys)
    return fresh, copies


def _remember(connection: sqlite3.Connection, copies: Sequence[NewDelivery]) -> dict[int, KeepResult]:
    """Record these copies; return their results by the identity of the delivery."""
    by_id, by_content = _stored_by_id(connection, copies), _stored_by_content(connection, copies)
    first = _next_number(connection)
    rows: list[tuple[object, ...]] = []
    answers: dict[int, KeepResult] = {}
    for row_id, copy in enumerate(copies, start=first):
        name = (copy.source_name, copy.delivery_id)
        reason = DUPLICATE_DELIVERY if name in by_id else DUPLICATE_CONTENT
        repeated, request_id = by_id[name] if name in by_id else repeated_by(copy, by_content)
        answers[id(copy)] = duplicate(copy, reason, request_id)
        rows.append(
            (
                row_id,
                copy.source_name,
                copy.delivery_id,
                copy.event_name,
                copy.received_at,
                copy.repo_full_name,
                reason,
                repeated,
                request_id,
            )
        )
    insert_many(connection, _INSERT_REPEATS, rows)
    # One sequence for both tables, so that the log can be read in order.
    connection.execute(
        "UPDATE sqlite_sequence SET seq = ? WHERE name = 'deliveries'", (first + len(rows) - 1,)
    )
    return answers


def _insert(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> bool:
    """Insert all of them, or none when one or its content is already stored."""
    # We assign the ids, under the transaction's lock, so that one statement can insert many rows.
    first = _next_number(connection)
    numbered = list(enumerate(deliveries, start=first))
    bodies = compressed([delivery.body for delivery in deliveries])
    rows = [
        (
            row_id,
            delivery.source_name,
            delivery.delivery_id,
            delivery.event_name,
            delivery.received_at,
            delivery.reason,
            delivery.detail,
            delivery.request_id,
            orjson.dumps(delivery.headers).decode(),
            body,
            delivery.repo_full_name,
        )
        for (row_id, delivery), body in zip(numbered, bodies, strict=True)
    ]
    requests = [
        (row_id, delivery.content_key, delivery.request_id, delivery.request)
        for row_id, delivery in numbered
        if delivery.request is not None
    ]
    if insert_many(connection, _INSERT_DELIVERIES, rows, _UNLESS_THERE) == len(rows) and (
        insert_many(connection, _INSERT_REQUESTS, requests, _UNLESS_THERE) == len(requests)
    ):
        aliases = [(key, row_id) for row_id, delivery in numbered for key in delivery.other_content_keys]
        insert_many(connection, _INSERT_ALIASES, aliases, _UNLESS_THERE)
        lacking = [each for each in numbered if each[1].lookup is not None]
        if not lacking or insert_lookups(connection, lacking, _UNLESS_THERE):
            return True
    connection.execute("DELETE FROM aliases WHERE row_id >= ?", (first,))
    connection.execute("DELETE FROM lookups WHERE row_id >= ?", (first,))
    connection.execute("DELETE FROM requests WHERE row_id >= ?", (first,))
    connection.execute("DELETE FROM deliveries WHERE row_id >= ?", (first,))
    return False


def _next_number(connection: sqlite3.Connection) -> int:
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'deliveries'").fetchone()
    return 1 if last is None else int(last[0]) + 1


def _stored_by_id(connection: sqlite3.Connection, deliveries: Iterable[NewDelivery]) -> _Known:
    of_source: dict[str, list[str]] = {}
    for delivery in deliveries:
        of_source.setdefault(delivery.source_name, []).append(delivery.delivery_id)
    # Source by source: for a list of pairs SQLite would read the whole table instead of its index.
    return {
        (source_name, row[0]): (row[1], row[2])
        for source_name, ids in of_source.items()
        for row in connection.execute(
            "SELECT delivery_id, row_id, request_id FROM deliveries"  # noqa: S608  nothing but question marks
            f" WHERE source_name = ? AND delivery_id IN ({_marks(ids)})",
            (source_name, *ids),
        )
    }


def _stored_by_content(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> _Known:
    keys = list(dict.fromkeys(key for each in deliveries for key in contents_of(each)))
    rows = connection.execute(
        f"SELECT content_key, row_id, request_id FROM requests WHERE content_key IN ({_marks(keys)})"  # noqa: S608  nothing but question marks
        " UNION ALL SELECT aliases.content_key, row_id, request_id FROM aliases JOIN requests USING (row_id)"
        f" WHERE aliases.content_key IN ({_marks(keys)})",
        (*keys, *keys),
    ).fetchall()
    lacking = [each.content_key for each in deliveries if each.lookup is not None]
    if lacking:
        rows += connection.execute(
            "SELECT content_key, row_id, deliveries.request_id FROM lookups JOIN deliveries USING (row_id)"  # noqa: S608  nothing but question marks
            f" WHERE content_key IN ({_marks(lacking)})",
            lacking,
        ).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
