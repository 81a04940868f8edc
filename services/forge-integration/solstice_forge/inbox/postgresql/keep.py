"""Writes deliveries to PostgreSQL: a group in three statements, without duplicates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson

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

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_NUMBERS: Final = "SELECT nextval('inbox_row_ids') AS row_id FROM generate_series(1, $1)"
_INSERT_DELIVERIES: Final = (
    "INSERT INTO inbox_deliveries (row_id, received_at, source_name, delivery_id, event_name, repo_full_name, reason,"
    " detail, request_id, headers, body) SELECT * FROM unnest($1::bigint[], $2::float8[], $3::text[], $4::text[],"
    " $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[])"
    " ON CONFLICT DO NOTHING RETURNING row_id"
)
_INSERT_REQUESTS: Final = (
    "INSERT INTO inbox_requests (row_id, content_key, request_id, request)"
    " SELECT asked.* FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[]) AS asked (a, key, b, c)"
    " WHERE NOT EXISTS (SELECT 1 FROM inbox_aliases WHERE content_key = asked.key)"
    " ON CONFLICT DO NOTHING RETURNING row_id"
)
# Only for deliveries with several contents, which are rare: a concurrent writer of one must see these or be seen.
_SINGLE: Final = "LOCK TABLE inbox_requests IN SHARE ROW EXCLUSIVE MODE"
_INSERT_ALIASES_OF: Final = (
    "SELECT content_key FROM inbox_requests WHERE content_key = ANY($1)"
    " UNION ALL SELECT content_key FROM inbox_aliases WHERE content_key = ANY($1)"
)
_INSERT_ALIASES: Final = (
    "INSERT INTO inbox_aliases (content_key, row_id) SELECT * FROM unnest($1::text[], $2::bigint[])"
    " ON CONFLICT DO NOTHING"
)
_INSERT_LOOKUPS: Final = (
    "INSERT INTO inbox_lookups (row_id, content_key, request_id, due_at, event)"
    " SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::float8[], $5::text[])"
    " ON CONFLICT DO NOTHING RETURNING row_id"
)
_INSERT_REPEATS: Final = (
    "INSERT INTO inbox_repeats (row_id, received_at, repeats, source_name, delivery_id, event_name, repo_full_name,"
    " reason, request_id) SELECT * FROM unnest($1::bigint[], $2::float8[], $3::bigint[], $4::text[], $5::text[],"
    " $6::text[], $7::text[], $8::text[], $9::text[])"
)
_BY_ID: Final = (
    "SELECT source_name, delivery_id, row_id, request_id FROM unnest($1::text[], $2::text[]) AS asked (source, id)"
    " JOIN inbox_deliveries ON source_name = asked.source AND delivery_id = asked.id"
)
_BY_CONTENT: Final = (
    "SELECT content_key, row_id, request_id FROM inbox_requests WHERE content_key = ANY($1)"
    " UNION ALL SELECT a.content_key, a.row_id, r.request_id FROM inbox_aliases a"
    " JOIN inbox_requests r USING (row_id) WHERE a.content_key = ANY($1)"
    " UNION ALL SELECT l.content_key, l.row_id, d.request_id FROM inbox_lookups l"
    " JOIN inbox_deliveries d USING (row_id) WHERE l.content_key = ANY($1)"
)

_Numbered = tuple[int, NewDelivery]
_Known = dict[object, tuple[int | None, str | None]]
_UNKNOWN: Final = (None, None)
"""The result for a delivery that was removed during the query."""


async def keep_all(connection: "Connection", deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult]:
    """Store new deliveries, and record copies; return each one's result.

    The new ones are numbered in the order given.
    """
    if any(each.other_content_keys for each in deliveries):
        await connection.execute(_SINGLE)
        if len(deliveries) > 1:
            return [result for each in deliveries for result in await keep_all(connection, [each])]
    numbers = [row["row_id"] for row in await connection.fetch(_NUMBERS, len(deliveries))]
    numbered = list(zip(sorted(numbers), deliveries, strict=True))
    by_id = await _insert_deliveries(connection, numbered)
    stored = [each for each in numbered if each[0] in by_id]
    new_contents = await _insert_contents(connection, stored)
    if len(new_contents) < len(stored):
        # The delivery is new, but another one had the same content.
        copy_ids = [row_id for row_id, _ in stored if row_id not in new_contents]
        await connection.execute("DELETE FROM inbox_deliveries WHERE row_id = ANY($1)", copy_ids)
    copies = [each for each in numbered if each[0] not in new_contents]
    answers, overtaken = await _remember(connection, copies, by_id) if copies else ({}, [])
    if overtaken:
        once_more = await keep_all(connection, [each for _, each in overtaken])
        answers |= {row_id: result for (row_id, _), result in zip(overtaken, once_more, strict=True)}
    return [answers.get(row_id) or new(delivery) for row_id, delivery in numbered]


async def _insert_deliveries(connection: "Connection", numbered: Sequence[_Numbered]) -> set[int]:
    """Insert deliveries; return the numbers of those whose delivery id is new."""
    # Always in the order of the key: two replicas that get the same deliveries then wait without a deadlock.
    rows = sorted(numbered, key=lambda each: (each[1].source_name, each[1].delivery_id))
    bodies = compressed([each.body for _, each in rows])
    inserted = await connection.fetch(
        _INSERT_DELIVERIES,
        [row_id for row_id, _ in rows],
        [each.received_at for _, each in rows],
        [each.source_name for _, each in rows],
        [each.delivery_id for _, each in rows],
        [each.event_name for _, each in rows],
        [each.repo_full_name for _, each in rows],
        [each.reason for _, each in rows],
        [each.detail for _, each in rows],
        [each.request_id for _, each in rows],
        [orjson.dumps(each.headers).decode() for _, each in rows],
        bodies,
    )
    return {row["row_id"] for row in inserted}


async def _insert_contents(connection: "Connection", stored: Sequence[_Numbered]) -> set[int]:
    """Insert requests; return the numbers of deliveries that repeat no stored content.

    Those are deliveries that ask for nothing, or for something new.
    """
    rows = sorted(stored, key=lambda each: each[1].content_key or "")
    new_contents = {row_id for row_id, each in rows if each.request is None and each.lookup is None}
    others = await _known_under_another_id(connection, rows)
    asking = [(row_id, each) for row_id, each in rows if each.request is not None and row_id not in others]
    if asking:
        inserted = await connection.fetch(
            _INSERT_REQUESTS,
            [row_id for row_id, _ in asking],
            [each.content_key for _, each in asking],
            [each.request_id for _, each in asking],
            [each.request for _, each in asking],
        )
        new_contents |= {row["row_id"] for row in inserted}
        aliases = [
            (key, row_id)
            for row_id, each in asking
            if row_id in new_contents
            for key in each.other_content_keys
        ]
        if aliases:
            await connection.execute(
                _INSERT_ALIASES, [key for key, _ in aliases], [row_id for _, row_id in aliases]
            )
    lacking = [(row_id, each, each.lookup) for row_id, each in rows if each.lookup is not None]
    if lacking:
        inserted = await connection.fetch(
            _INSERT_LOOKUPS,
            [row_id for row_id, _, _ in lacking],
            [each.content_key for _, each, _ in lacking],
            [each.request_id for _, each, _ in lacking],
            [each.received_at for _, each, _ in lacking],
            [lookup.decode() for _, _, lookup in lacking],
        )
        new_contents |= {row["row_id"] for row in inserted}
    return new_contents


async def _known_under_another_id(connection: "Connection", rows: Sequence[_Numbered]) -> set[int]:
    """Return the numbers of those of which one of several contents is stored."""
    several = [(row_id, contents_of(each)) for row_id, each in rows if each.other_content_keys]
    if not several:
        return set()
    aliases = await connection.fetch(_INSERT_ALIASES_OF, [key for _, keys in several for key in keys])
    there = {row["content_key"] for row in aliases}
    return {row_id for row_id, keys in several if not there.isdisjoint(keys)}


async def _remember(
    connection: "Connection", copies: Sequence[_Numbered], new_ids: set[int]
) -> tuple[dict[int, KeepResult], list[_Numbered]]:
    """Record these copies; return their results by number.

    For those in `new_ids` the content is known. Also returns copies whose delivery id is not known after all: it was
    removed with another delivery's content.
    """
    rows = await connection.fetch(
        _BY_ID, [each.source_name for _, each in copies], [each.delivery_id for _, each in copies]
    )
    by_id: _Known = {
        (row["source_name"], row["delivery_id"]): (row["row_id"], row["request_id"]) for row in rows
    }
    keys = [key for _, each in copies for key in contents_of(each)]
    rows = await connection.fetch(_BY_CONTENT, keys)
    by_content: _Known = {row["content_key"]: (row["row_id"], row["request_id"]) for row in rows}
    answers: dict[int, KeepResult] = {}
    repeated: list[int | None] = []
    overtaken: list[_Numbered] = []
    for row_id, each in copies:
        name = (each.source_name, each.delivery_id)
        if row_id in new_ids:
            reason, known = DUPLICATE_CONTENT, repeated_by(each, by_content, _UNKNOWN)
        elif name in by_id:
            reason, known = DUPLICATE_DELIVERY, by_id[name]
        else:
            overtaken.append((row_id, each))
            continue
        repeated.append(known[0])
        answers[row_id] = duplicate(each, reason, known[1])
    copies = [each for each in copies if each[0] in answers]
    await connection.execute(
        _INSERT_REPEATS,
        [row_id for row_id, _ in copies],
        [each.received_at for _, each in copies],
        repeated,
        [each.source_name for _, each in copies],
        [each.delivery_id for _, each in copies],
        [each.event_name for _, each in copies],
        [each.repo_full_name for _, each in copies],
        [answers[row_id].reason for row_id, _ in copies],
        [next(iter(answers[row_id].request_ids), None) for row_id, _ in copies],
    )
    return answers, overtaken
