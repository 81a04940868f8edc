"""Notes when traced requests are published, and gives the exporter those that were."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from solstice_common.broker.protocol import Message
from solstice_common.topology import Route
from solstice_common.tracing.trace_context import read_traceparent
from solstice_common.tracing.trace_export import TracedItem
from solstice_forge.inbox.protocol import PendingRequest
from solstice_forge.inbox.traced_requests import PublishTimes, RequestTraces
from solstice_forge.relay.publication import TRACE_HEADER
from solstice_forge.relay.request_spans import request_spans

MOST_SENT: Final = 10_000
"""How many sent requests without a confirm have their time noted: a broker may always refuse some."""


class PublishClock:
    """When the relay sent requests that are traced, and when the broker confirmed them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sent: dict[int, float] = {}
        self._confirmed: dict[int, PublishTimes] = {}

    def sending(self, row_id: int, message: Message) -> None:
        """Note that a message is sent now; of several attempts the first counts.

        Of very many without a confirm, the oldest are forgotten, and have no spans.
        """
        trace = read_traceparent(str(message.headers.get(TRACE_HEADER, "")))
        if trace is not None and trace.sampled:
            self._sent.setdefault(row_id, self._clock())
            if len(self._sent) > MOST_SENT:
                del self._sent[next(iter(self._sent))]

    def confirmed(self, rows: Iterable[PendingRequest]) -> None:
        """Note that the broker has confirmed these now."""
        now = self._clock()
        for row in rows:
            if (sent_at := self._sent.pop(row.row_id, None)) is not None:
                self._confirmed[row.row_id] = PublishTimes(
                    row_id=row.row_id, request_id=row.request_id, sent_at=sent_at, confirmed_at=now
                )

    def times(self, row_ids: Iterable[int]) -> Sequence[PublishTimes]:
        """Return the times of those of the confirmed rows that are traced."""
        return [self._confirmed[row_id] for row_id in row_ids if row_id in self._confirmed]

    def recorded(self, row_ids: Iterable[int]) -> None:
        """Forget the rows whose times are stored."""
        for row_id in row_ids:
            self._confirmed.pop(row_id, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTraceBacklog:
    """A TracedBacklog of the inbox's published requests."""

    inbox: RequestTraces
    route: Route
    broker: str
    """The kind of the broker."""
    api_source: str
    """The name of the source that stands for the API."""
    clock: Callable[[], float] = time.time

    async def take(self, limit: int, leased_seconds: float) -> Sequence[TracedItem[int]]:
        now = self.clock()
        return [
            TracedItem(
                key=each.row_id,
                spans=partial(
                    request_spans, each, self.route, broker=self.broker, api_source=self.api_source
                ),
            )
            for each in await self.inbox.take_traces(now, until=now + leased_seconds, limit=limit)
        ]

    async def traced(self, keys: Sequence[int]) -> None:
        await self.inbox.traced(keys)
