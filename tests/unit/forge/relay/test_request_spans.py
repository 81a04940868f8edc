"""The spans of published requests, and the times that the relay notes for them."""

from typing import Any

import orjson

from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route, jobs_route
from solstice_common.tracing.request_trace import message_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.spans import Span, SpanType
from solstice_forge.inbox.protocol import PendingRequest
from solstice_forge.inbox.traced_requests import PublishTimes, TracedRequest
from solstice_forge.relay.publication import publication
from solstice_forge.relay.request_spans import request_spans
from solstice_forge.relay.request_trace_backlog import MOST_SENT, PublishClock
from tests.builders import job_cancel, job_request
from tests.span_table import type_of, undeclared

ALL = Sampler(ratio=1.0, follows_parent=True)
NONE = Sampler(ratio=0.0, follows_parent=True)
ROUTE: Route = jobs_route(BrokerSettings.model_construct())
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def body(traceparent: str | None = None, *, sampler: Sampler = ALL) -> bytes:
    request = job_request()
    named = message_traceparent(traceparent, request.request_id, sampler)
    return request.model_copy(update={"traceparent": named}).encode()


def traced(**changes: Any) -> TracedRequest:
    return TracedRequest(
        **{
            "row_id": 1,
            "source_name": "forgejo",
            "delivery_id": "d-1",
            "event_name": "push",
            "headers": {},
            "request": body(),
            "received_at": 10.0,
            "stored_at": 10.5,
            "sent_at": 11.0,
            "confirmed_at": 11.25,
            **changes,
        }
    )


def spans(of: TracedRequest) -> list[Span]:
    return list(request_spans(of, ROUTE, broker="rabbitmq", api_source="api"))


def test_a_webhook_holds_its_publishing_whose_span_the_message_names() -> None:
    of = traced()
    webhook, publish = spans(of)
    assert (webhook.name, webhook.started_at, webhook.ended_at) == ("POST /webhooks/forgejo", 10.0, 10.5)
    assert (publish.name, publish.started_at, publish.ended_at) == (
        "publish solstice.jobs:jobrequest.v1",
        11.0,
        11.25,
    )
    assert (webhook.parent_id, publish.parent_id) == (None, webhook.span_id)
    named = publication(of.request, ROUTE, attempt=1).headers["traceparent"]
    assert named == f"00-{publish.trace_id}-{publish.span_id}-01"


def test_a_callers_trace_goes_on() -> None:
    webhook, publish = spans(traced(request=body(CALLER), headers={"traceparent": CALLER}))
    assert {webhook.trace_id, publish.trace_id} == {"0af7651916cd43dd8448eb211c80319c"}
    assert webhook.parent_id == "b7ad6b7169203331"


def test_a_traceparent_of_another_trace_is_no_parent() -> None:
    webhook, _ = spans(traced(headers={"traceparent": CALLER}))
    assert webhook.parent_id is None


def test_a_webhook_of_unknown_length_has_none() -> None:
    webhook, _ = spans(traced(stored_at=None))
    assert webhook.started_at == webhook.ended_at


def test_a_request_of_the_api_is_named_so() -> None:
    webhook, _ = spans(traced(source_name="api"))
    assert webhook.name == "POST /api/v1/jobs"


def test_what_no_webhook_brought_begins_with_its_publishing() -> None:
    (publish,) = spans(traced(delivery_id="reconcile:1"))
    assert (publish.type, publish.parent_id) == (SpanType.PUBLISH, None)


def test_a_request_from_before_traces_were_on_has_no_spans() -> None:
    assert spans(traced(request=job_request().encode())) == []
    assert spans(traced(request=job_request(traceparent=CALLER).encode())) == []


def test_a_cancel_has_spans_too() -> None:
    cancel = job_cancel()
    named = message_traceparent(None, cancel.cancel_id, ALL)
    encoded = cancel.model_copy(update={"traceparent": named}).encode()
    _, publish = spans(traced(request=encoded))
    assert publish.name == "publish solstice.cancels:jobcancel.v1"


def test_every_span_is_declared() -> None:
    for span in spans(traced()):
        assert type_of(span.name, span.type.value.kind.value) is span.type
        assert set(span.attributes) == set(span.type.value.attributes)
        assert not undeclared(span.type, span.attributes)


def pending(request: bytes, row_id: int = 1) -> PendingRequest:
    request_id = orjson.loads(request)["request_id"]
    return PendingRequest(row_id=row_id, request_id=request_id, request=request, attempts=0)


def test_the_relay_notes_the_first_sending_and_the_confirm() -> None:
    times = iter((1.0, 2.0, 3.0))
    clock = PublishClock(lambda: next(times))
    row = pending(body())
    message = publication(row.request, ROUTE, attempt=1)
    clock.sending(1, message)
    clock.sending(1, message)
    # The time of the second sending was asked for, and does not count.
    assert clock.times([1]) == []
    clock.confirmed([row])
    (noted,) = clock.times([1, 2])
    assert noted == PublishTimes(row_id=1, request_id=row.request_id, sent_at=1.0, confirmed_at=3.0)
    clock.recorded([1])
    assert clock.times([1]) == []


def test_requests_that_no_broker_confirms_do_not_fill_the_memory() -> None:
    clock = PublishClock(lambda: 1.0)
    message = publication(body(), ROUTE, attempt=1)
    for row_id in range(MOST_SENT + 1):
        clock.sending(row_id, message)
    rows = [pending(body(), row_id) for row_id in (0, 1, MOST_SENT)]
    clock.confirmed(rows)
    assert [noted.row_id for noted in clock.times([0, 1, MOST_SENT])] == [1, MOST_SENT]


def test_the_relay_notes_nothing_of_what_is_not_sampled() -> None:
    clock = PublishClock(lambda: 1.0)
    for request in (body(sampler=NONE), job_request().encode()):
        row = pending(request)
        clock.sending(1, publication(row.request, ROUTE, attempt=1))
        clock.confirmed([row])
        assert clock.times([1]) == []
