"""Reads pages of the decision log from any database.

`fetch` runs one statement and returns its rows.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, DeliveryPage, RecordedDelivery
from solstice_forge.inbox.reading import (
    OUT_OF_ORDER_SECONDS,
    RANGE,
    RANGES,
    DeliveryQueries,
    copy_of,
    entry_of,
    query_parameters,
    recorded_of,
    replay_ids,
)

Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def entries(
    fetch: Fetch, queries: DeliveryQueries, filters: DeliveryFilter, *, limit: int, before: int | None
) -> DeliveryPage:
    """Return one page.

    It is short when the log is at its end, or when few of the rows it looked through match.
    """
    high = before
    if high is None:
        (newest,) = await fetch(queries.newest)
        high = (newest["row_id"] or 0) + 1
    entries_found: list[DeliveryEntry] = []
    for _ in range(RANGES):
        low = max(0, high - RANGE)
        rows = await fetch(queries.range, *query_parameters(low, high, limit - len(entries_found), filters))
        entries_found += [entry_of(row) for row in rows]
        if len(entries_found) == limit:
            return DeliveryPage(entries=entries_found, next=entries_found[-1].row_id)
        if await _ends_at(fetch, queries, filters, low):
            return DeliveryPage(entries=entries_found, next=None)
        high = low
    return DeliveryPage(entries=entries_found, next=high)


async def recorded(fetch: Fetch, queries: DeliveryQueries, row_id: int) -> RecordedDelivery | None:
    """Return the delivery of this number."""
    for row in await fetch(queries.delivery, row_id):
        return recorded_of(row)
    for row in await fetch(queries.repeat, row_id):
        return copy_of(row)
    return None


async def numbers_of(fetch: Fetch, queries: DeliveryQueries, delivery_id: str) -> Sequence[int]:
    """Return the numbers of the deliveries with this id."""
    return [row["row_id"] for row in await fetch(queries.numbers, delivery_id)]


async def copies_of(
    fetch: Fetch, queries: DeliveryQueries, row_id: int, *, limit: int
) -> Sequence[DeliveryEntry]:
    """Return the first copies."""
    return [entry_of(row) for row in await fetch(queries.copies, row_id, limit)]


async def replays_of(
    fetch: Fetch, queries: DeliveryQueries, row_id: int, *, limit: int
) -> Sequence[DeliveryEntry]:
    """Return the first replays."""
    original = await recorded(fetch, queries, row_id)
    if original is None:
        return []
    rows = await fetch(queries.replays, original.entry.source_name, *replay_ids(row_id), limit)
    return [entry_of(row) for row in rows]


async def _ends_at(fetch: Fetch, queries: DeliveryQueries, filters: DeliveryFilter, low: int) -> bool:
    """Whether no delivery below this number can match."""
    if low == 0:
        return True
    older = await fetch(queries.age_before, low)
    return not older or older[0]["received_at"] < (filters.since or 0.0) - OUT_OF_ORDER_SECONDS
