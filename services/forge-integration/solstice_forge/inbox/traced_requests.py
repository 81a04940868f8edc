"""The published requests whose spans are not exported yet, and the times of their spans."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from solstice_common.values.value import Value

MOST_STORED: Final = 10_000
"""How many times of storing a process remembers; of others the span of the webhook has no length."""


class PublishTimes(Value, frozen=True, kw_only=True):
    """When the relay published a request that is traced; in seconds since the epoch."""

    row_id: int
    request_id: str
    sent_at: float
    confirmed_at: float


class TracedRequest(Value, frozen=True, kw_only=True):
    """A published request with what its spans say."""

    row_id: int
    source_name: str
    delivery_id: str
    event_name: str
    headers: Mapping[str, str]
    """Of its webhook."""
    request: bytes
    received_at: float
    stored_at: float | None
    sent_at: float
    confirmed_at: float


class RequestTraces(Protocol):
    """The part of the inbox about traces; raises only StoreUnavailable."""

    stored_times: "StoredTimes | None"
    """Where the inbox notes what it stores; None while nothing is traced."""

    async def take_traces(self, now: float, *, until: float, limit: int) -> Sequence[TracedRequest]:
        """Return requests that wait to be traced; no process gets them again before `until`."""
        ...

    async def traced(self, row_ids: Sequence[int]) -> None:
        """Record that they need not be traced any more."""
        ...


class StoredTimes:
    """When this process stored requests, until the relay asks for it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._times: dict[str, float] = {}

    def note(self, request_ids: Iterable[str | None]) -> None:
        """Note that these requests are stored now."""
        self._times |= dict.fromkeys(filter(None, request_ids), self._clock())
        while len(self._times) > MOST_STORED:
            del self._times[next(iter(self._times))]

    def take(self, request_id: str) -> float | None:
        return self._times.pop(request_id, None)


def trace_rows(
    times: Sequence[PublishTimes], stored: StoredTimes | None
) -> list[tuple[int, float | None, float, float]]:
    """Return the rows to store: number, and the times of storing, sending and confirming."""
    return [
        (each.row_id, stored.take(each.request_id) if stored else None, each.sent_at, each.confirmed_at)
        for each in times
    ]


COLUMNS: Final = TracedRequest.__struct_fields__
"""What a query for traced requests selects."""


def traced_request(row: Sequence[Any]) -> TracedRequest:
    """Return the request of a row with the columns of `COLUMNS`."""
    values = dict(zip(COLUMNS, row, strict=True))
    return TracedRequest(**{**values, "headers": orjson.loads(values["headers"])})
