# ruff: noqa: S608  every statement is made of constants
"""The decision log's queries, in SQL for both SQLite and PostgreSQL.

Rows are found by their number: a page looks through a bounded range of them, so that a query without matches does not
read the whole log.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from solstice_forge.inbox.frames import decompressed
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, RecordedDelivery
from solstice_forge.inbox.protocol import Decision

RANGE: Final = 5_000
"""How many numbers one query looks through."""
RANGES: Final = 8
"""The most queries for one page."""
OUT_OF_ORDER_SECONDS: Final = 3600.0
"""How far the order of numbers may differ from the order of times, by clock changes and slow processes."""
REPLAY: Final = "replay"
"""The prefix of a replay's delivery id: `replay:NUMBER:TOKEN`."""


class DeliveryQueries:
    """The statements for tables whose names begin with `prefix`.

    The placeholder of the first value is written `{placeholder}1`.
    """

    def __init__(self, *, prefix: str = "", placeholder: str = "$") -> None:
        deliveries, requests, repeats = (f"{prefix}{name}" for name in ("deliveries", "requests", "repeats"))
        of_delivery = (
            "d.row_id, d.source_name, d.delivery_id, d.event_name, d.received_at, d.repo_full_name, d.reason, d.detail,"
            " d.request_id, 0 AS is_repeat, NULL AS repeats, r.published, r.attempts,"
            " coalesce(r.last_failure, l.last_failure) AS last_failure"
        )
        of_repeat = (
            "row_id, source_name, delivery_id, event_name, received_at, repo_full_name, reason, '' AS detail,"
            " request_id, 1 AS is_repeat, repeats, NULL AS published, NULL AS attempts, NULL AS last_failure"
        )
        joined = (
            f"FROM {deliveries} d LEFT JOIN {requests} r ON r.row_id = d.row_id"
            f" LEFT JOIN {prefix}lookups l ON l.row_id = d.row_id AND l.due_at IS NOT NULL"
        )
        filters = (
            "($4 = '' OR source_name = $4) AND ($5 = '' OR repo_full_name = $5) AND ($6 = '' OR {reason} = $6)"
            " AND received_at >= $7"
        )

        def in_dialect(statement: str) -> str:
            return statement.replace("$", placeholder)

        self.newest: Final = in_dialect(
            f"SELECT max(row_id) AS row_id FROM (SELECT max(row_id) AS row_id FROM {deliveries}"
            f" UNION ALL SELECT max(row_id) FROM {repeats}) AS both_tables"
        )
        self.range: Final = in_dialect(
            f"SELECT {of_delivery} {joined} WHERE d.row_id >= $1 AND d.row_id < $2 AND "
            + filters.format(reason="d.reason")
            + " AND ($8 = '' OR $8 = CASE WHEN d.request_id IS NULL THEN 'ignored' ELSE 'accepted' END)"
            f" UNION ALL SELECT {of_repeat} FROM {repeats} WHERE row_id >= $1 AND row_id < $2 AND "
            + filters.format(reason="reason")
            + " AND ($8 = '' OR $8 = 'duplicate') ORDER BY row_id DESC LIMIT $3"
        )
        self.age_before: Final = in_dialect(
            f"SELECT received_at FROM {deliveries} WHERE row_id < $1 ORDER BY row_id DESC LIMIT 1"
        )
        self.delivery: Final = in_dialect(
            f"SELECT {of_delivery}, d.headers, d.body, r.request {joined} WHERE d.row_id = $1"
        )
        self.repeat: Final = f"SELECT {of_repeat} FROM {repeats} WHERE row_id = $1"
        # Source by source, of which there are few: the index finds each one after the previous one.
        self.numbers: Final = in_dialect(
            "WITH RECURSIVE sources (name) AS ("
            f"SELECT min(source_name) FROM {deliveries}"
            f" UNION ALL SELECT (SELECT min(source_name) FROM {deliveries} WHERE source_name > sources.name)"
            " FROM sources WHERE sources.name IS NOT NULL)"
            f" SELECT row_id FROM sources JOIN {deliveries} ON source_name = sources.name AND delivery_id = $1"
            f" UNION ALL SELECT row_id FROM {repeats} WHERE delivery_id = $1 ORDER BY row_id"
        )
        self.copies: Final = in_dialect(
            f"SELECT {of_repeat} FROM {repeats} WHERE repeats = $1 ORDER BY row_id LIMIT $2"
        )
        self.replays: Final = in_dialect(
            f"SELECT {of_delivery} {joined} WHERE d.source_name = $1 AND d.delivery_id >= $2"
            " AND d.delivery_id < $3 ORDER BY d.row_id LIMIT $4"
        )


def query_parameters(low: int, high: int, limit: int, filters: DeliveryFilter) -> tuple[object, ...]:
    """Return the values for `DeliveryQueries.range`."""
    return (
        low,
        high,
        limit,
        filters.source or "",
        filters.repository or "",
        filters.reason or "",
        float(filters.since or 0.0),
        filters.decision.value if filters.decision else "",
    )


def replay_ids(row_id: int) -> tuple[str, str]:
    """Return the first (included) and last (excluded) delivery id of a delivery's replays."""
    return f"{REPLAY}:{row_id}:", f"{REPLAY}:{row_id};"


def entry_of(row: Mapping[str, Any] | Any) -> DeliveryEntry:
    """Return what a row of the inbox says about its delivery."""
    request_id = row["request_id"]
    return DeliveryEntry(
        row_id=row["row_id"],
        source_name=row["source_name"],
        delivery_id=row["delivery_id"],
        event_name=row["event_name"],
        received_at=row["received_at"],
        repo_full_name=row["repo_full_name"],
        decision=_decision(row),
        reason=row["reason"],
        detail=row["detail"],
        request_ids=() if request_id is None else (request_id,),
        repeats=row["repeats"],
        published=None if row["published"] is None else bool(row["published"]),
        attempts=row["attempts"] or 0,
        last_failure=row["last_failure"],
    )


def recorded_of(row: Mapping[str, Any] | Any) -> RecordedDelivery:
    """Return all of a delivery that is no copy."""
    return RecordedDelivery(
        entry=entry_of(row),
        headers=orjson.loads(row["headers"]),
        body=decompressed(bytes(row["body"])),
        request=None if row["request"] is None else bytes(row["request"]),
    )


def copy_of(row: Mapping[str, Any] | Any) -> RecordedDelivery:
    """Return all of a delivery that is a copy."""
    return RecordedDelivery(entry=entry_of(row), headers={}, body=b"", request=None)


def _decision(row: Mapping[str, Any] | Any) -> Decision:
    if row["is_repeat"]:
        return Decision.DUPLICATE
    return Decision.IGNORED if row["request_id"] is None else Decision.ACCEPTED
