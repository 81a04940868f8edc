"""Asking the decision log, whatever database it is in: `fetch` runs one statement and gives its rows."""

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
    recorded_of,
    replay_ids,
    wanted,
)

Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def entries(
    fetch: Fetch, ask: DeliveryQueries, filters: DeliveryFilter, *, limit: int, before: int | None
) -> DeliveryPage:
    """One page; short when the log is at its end, or when little of what was looked through is sought."""
    high = before
    if high is None:
        (newest,) = await fetch(ask.newest)
        high = (newest["row_id"] or 0) + 1
    found: list[DeliveryEntry] = []
    for _ in range(RANGES):
        low = max(0, high - RANGE)
        rows = await fetch(ask.range, *wanted(low, high, limit - len(found), filters))
        found += [entry_of(row) for row in rows]
        if len(found) == limit:
            return DeliveryPage(entries=found, next=found[-1].row_id)
        if await _ends_at(fetch, ask, filters, low):
            return DeliveryPage(entries=found, next=None)
        high = low
    return DeliveryPage(entries=found, next=high)


async def recorded(fetch: Fetch, ask: DeliveryQueries, row_id: int) -> RecordedDelivery | None:
    """The delivery of this number."""
    for row in await fetch(ask.delivery, row_id):
        return recorded_of(row)
    for row in await fetch(ask.repeat, row_id):
        return copy_of(row)
    return None


async def numbers_of(fetch: Fetch, ask: DeliveryQueries, delivery_id: str) -> Sequence[int]:
    """The numbers of what came under this id."""
    return [row["row_id"] for row in await fetch(ask.numbers, delivery_id)]


async def copies_of(
    fetch: Fetch, ask: DeliveryQueries, row_id: int, *, limit: int
) -> Sequence[DeliveryEntry]:
    """The first copies."""
    return [entry_of(row) for row in await fetch(ask.copies, row_id, limit)]


async def replays_of(
    fetch: Fetch, ask: DeliveryQueries, row_id: int, *, limit: int
) -> Sequence[DeliveryEntry]:
    """What a person made of it."""
    original = await recorded(fetch, ask, row_id)
    if original is None:
        return []
    rows = await fetch(ask.replays, original.entry.source_name, *replay_ids(row_id), limit)
    return [entry_of(row) for row in rows]


async def _ends_at(fetch: Fetch, ask: DeliveryQueries, filters: DeliveryFilter, low: int) -> bool:
    """Whether nothing below this number can be sought."""
    if low == 0:
        return True
    older = await fetch(ask.age_before, low)
    return not older or older[0]["received_at"] < (filters.since or 0.0) - OUT_OF_ORDER_SECONDS
