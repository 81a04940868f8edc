"""The spans of reported statuses, which wait in memory."""

import orjson
import pytest

from solstice_common.tracing.spans import SpanType
from solstice_forge.statuses import status_spans
from solstice_forge.statuses.protocol import OutgoingStatus
from solstice_forge.statuses.status_spans import StatusSpans, status_span
from tests.span_table import type_of, undeclared

TRACED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def outgoing(
    place: str = "run.1.0", traceparent: str | None = TRACED, context: str = "solstice"
) -> OutgoingStatus:
    return OutgoingStatus(
        row_id=1,
        repository="river/otter",
        place=place,
        run_id="run",
        state="succeeded",
        final=True,
        request_id="request",
        stored_at=1.0,
        body=orjson.dumps({"context": context, "traceparent": traceparent}),
        failures=0,
        failing_since=None,
        since=2.0,
        calls=1,
        check_id=None,
    )


async def waiting(spans: StatusSpans, limit: int = 100) -> list[int]:
    return [each.key for each in await spans.take(limit, 15.0)]


def test_a_reported_status_is_a_span_of_its_run() -> None:
    span = status_span("forgejo", outgoing(), 3.0)
    assert span is not None
    assert (span.name, span.parent_id, span.started_at, span.ended_at) == (
        "report status",
        "b7ad6b7169203331",
        2.0,
        3.0,
    )
    assert type_of(span.name, span.type.value.kind.value) is SpanType.STATUS
    assert not undeclared(span.type, span.attributes)


def test_statuses_of_two_contexts_at_one_place_are_two_spans() -> None:
    spans = [status_span("forgejo", outgoing(context=each), 3.0) for each in ("solstice", "solstice/build")]
    assert len({span and span.span_id for span in spans}) == 2


@pytest.mark.parametrize("traceparent", [None, f"{TRACED[:-2]}00", "nonsense"])
async def test_a_status_of_an_untraced_run_is_no_span(traceparent: str | None) -> None:
    spans = StatusSpans(lambda: None)
    spans.reported("forgejo", outgoing(traceparent=traceparent))
    assert await waiting(spans) == []


async def test_spans_wait_in_order_until_they_were_sent() -> None:
    spans = StatusSpans(lambda: None)
    for number in range(3):
        spans.reported("forgejo", outgoing(f"run.{number}.0"))
    assert await waiting(spans, 2) == [0, 1]
    assert await waiting(spans) == [0, 1, 2]
    await spans.traced([0, 1])
    assert await waiting(spans) == [2]


async def test_spans_without_a_place_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_spans, "MOST_SPANS", 2)
    dropped: list[None] = []
    spans = StatusSpans(lambda: dropped.append(None))
    for number in range(5):
        spans.reported("forgejo", outgoing(f"run.{number}.0"))
    assert (len(dropped), await waiting(spans)) == (3, [0, 1])
