"""Deliveries become rows: a group in a few statements, each delivery and each content once."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

import orjson
from zstandard import ZstdCompressor

from solstice_common.sqlite import insert_many
from solstice_forge.inbox.protocol import Decision, Kept, NewDelivery

DUPLICATE_DELIVERY: Final = "duplicate_delivery"
DUPLICATE_CONTENT: Final = "duplicate_content"
_DELIVERY_COLUMNS: Final = (
    "row_id, source_name, delivery_id, event_name, received_at, reason, detail, request_id, headers, body"
)

_Requests = dict[object, str | None]
"""What a delivery of that id, or of that content, asked for."""


def keep_all(connection: sqlite3.Connection, deliveries: Sequence[NewDelivery]) -> Sequence[Kept]:
    """Store those that are new, in the order given; the answer to each."""
    by_id = _stored_by_id(connection, deliveries)
    by_content = _stored_by_content(connection, deliveries)
    answers: list[Kept] = []
    fresh: list[NewDelivery] = []
    for delivery in deliveries:
        name = (delivery.source_name, delivery.delivery_id)
        if name in by_id:
            answers.append(_duplicate(delivery, DUPLICATE_DELIVERY, by_id[name]))
        elif delivery.content_key in by_content:
            answers.append(_duplicate(delivery, DUPLICATE_CONTENT, by_content[delivery.content_key]))
        else:
            answers.append(_new(delivery))
            fresh.append(delivery)
            # What comes later in the same group may repeat it.
            by_id[name] = delivery.request_id
            if delivery.content_key is not None:
                by_content[delivery.content_key] = delivery.request_id
    if fresh:
        _insert(connection, fresh)
    return answers


def _insert(connection: sqlite3.Connection, fresh: Sequence[NewDelivery]) -> None:
    # Ids are given out by us, under the transaction's lock, so that many rows can be one statement.
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'deliveries'").fetchone()
    numbered = list(enumerate(fresh, start=1 if last is None else last[0] + 1))
    bodies = compressed([delivery.body for delivery in fresh])
    insert_many(
        connection,
        f"INSERT INTO deliveries ({_DELIVERY_COLUMNS}) VALUES",
        [
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
            )
            for (row_id, delivery), body in zip(numbered, bodies, strict=True)
        ],
    )
    insert_many(
        connection,
        "INSERT INTO requests (row_id, content_key, request_id, request) VALUES",
        [
            (row_id, delivery.content_key, delivery.request_id, delivery.request)
            for row_id, delivery in numbered
            if delivery.request is not None
        ],
    )


def _stored_by_id(connection: sqlite3.Connection, deliveries: Iterable[NewDelivery]) -> _Requests:
    of_source: dict[str, list[str]] = {}
    for delivery in deliveries:
        of_source.setdefault(delivery.source_name, []).append(delivery.delivery_id)
    # Source by source: for a list of pairs SQLite would read the whole table instead of its index.
    return {
        (source_name, row[0]): row[1]
        for source_name, ids in of_source.items()
        for row in connection.execute(
            "SELECT delivery_id, request_id FROM deliveries"  # noqa: S608  nothing but question marks
            f" WHERE source_name = ? AND delivery_id IN ({_marks(ids)})",
            (source_name, *ids),
        )
    }


def _stored_by_content(connection: sqlite3.Connection, deliveries: Iterable[NewDelivery]) -> _Requests:
    keys = list(dict.fromkeys(each.content_key for each in deliveries if each.content_key is not None))
    rows = connection.execute(
        f"SELECT content_key, request_id FROM requests WHERE content_key IN ({_marks(keys)})",  # noqa: S608  nothing but question marks
        keys,
    )
    return {row[0]: row[1] for row in rows}


def compressed(bodies: Sequence[bytes]) -> list[bytes]:
    """Zstandard frames (RFC 8878), nothing for nothing: a quarter of the disk, in less time than writing the rest would take.

    All in one call: each would give up the interpreter, and wait to get it back from a busy event loop.
    """
    places = [place for place, body in enumerate(bodies) if body]
    if not places:
        return list(bodies)
    frames = ZstdCompressor(level=1).multi_compress_to_buffer([bodies[place] for place in places], threads=1)
    packed = {place: frames[number].tobytes() for number, place in enumerate(places)}
    return [packed.get(place, b"") for place in range(len(bodies))]


def _marks(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))


def _new(delivery: NewDelivery) -> Kept:
    return Kept(
        delivery_id=delivery.delivery_id,
        decision=Decision.IGNORED if delivery.request is None else Decision.ACCEPTED,
        reason=delivery.reason,
        request_ids=() if delivery.request_id is None else (delivery.request_id,),
    )


def _duplicate(delivery: NewDelivery, reason: str, request_id: str | None) -> Kept:
    return Kept(
        delivery_id=delivery.delivery_id,
        decision=Decision.DUPLICATE,
        reason=reason,
        request_ids=() if request_id is None else (request_id,),
    )
