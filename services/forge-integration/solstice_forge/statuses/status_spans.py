"""Keeps the spans of reported statuses until a collector has taken them."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

import orjson

from solstice_common.tracing.spans import Span, SpanType
from solstice_common.tracing.trace_context import read_traceparent
from solstice_common.tracing.trace_export import TracedItem
from solstice_forge.statuses.protocol import OutgoingStatus

MOST_SPANS: Final = 10_000
"""How many spans wait at most; they are the last of their traces, so without them nothing lacks its parent."""


def status_span(source_name: str, outgoing: OutgoingStatus, ended_at: float) -> Span | None:
    """Return the span of a reported status; None when its run is not traced."""
    status = orjson.loads(outgoing.body)
    trace = read_traceparent(status.get("traceparent"))
    if trace is None or not trace.sampled:
        return None
    return Span(
        type=SpanType.STATUS,
        name="report status",
        trace_id=trace.trace_id,
        span_id=trace.span_id("status", source_name, status["context"], outgoing.place),
        parent_id=trace.parent_id,
        started_at=outgoing.since,
        ended_at=ended_at,
        attributes={
            "http.request.method": "POST",
            "solstice.source": source_name,
            "solstice.state": outgoing.state,
        },
    )


class StatusSpans:
    """A TracedBacklog in memory: the end of a process loses what it holds."""

    def __init__(self, dropped: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        """`dropped` is called for each span that finds no place."""
        self._dropped = dropped
        self._clock = clock
        self._numbers = count()
        self._waiting: deque[TracedItem[int]] = deque()

    def reported(self, source_name: str, outgoing: OutgoingStatus) -> None:
        """Keep the span of a status that its forge shows now."""
        span = status_span(source_name, outgoing, self._clock())
        if span is None:
            return
        if len(self._waiting) >= MOST_SPANS:
            self._dropped()
            return
        self._waiting.append(TracedItem(key=next(self._numbers), spans=lambda: (span,)))

    async def take(self, limit: int, leased_seconds: float) -> Sequence[TracedItem[int]]:  # noqa: ARG002  no other process
        return list(islice(self._waiting, limit))

    async def traced(self, keys: Sequence[int]) -> None:
        done = set(keys)
        while self._waiting and self._waiting[0].key in done:
            self._waiting.popleft()
