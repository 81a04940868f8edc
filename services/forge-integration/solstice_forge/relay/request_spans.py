"""Makes the spans of a published request from what the inbox knows of it. Pure."""

from collections.abc import Sequence
from typing import Final

import orjson

from solstice_common.messages.fields import RESERVED_IDS
from solstice_common.topology import Route
from solstice_common.tracing.request_trace import publish_span_id, webhook_span_id
from solstice_common.tracing.spans import Span, SpanType
from solstice_common.tracing.trace_context import Trace, read_traceparent
from solstice_forge.inbox.traced_requests import TracedRequest
from solstice_forge.relay.publication import publication

ACCEPTED: Final = 202


def request_spans(traced: TracedRequest, jobs: Route, *, broker: str, api_source: str) -> Sequence[Span]:
    """Return the spans of a webhook and of its request's publishing.

    `broker` is the kind of the broker, `api_source` the name of the source that stands for the API. There are none for a
    request that was stored before traces were switched on: its message names another span.
    """
    message = publication(traced.request, jobs, attempt=1)
    request_id = message.correlation_id or ""
    trace = read_traceparent(orjson.loads(traced.request).get("traceparent"))
    if trace is None or trace.parent_id != publish_span_id(trace, request_id):
        return ()
    webhook = (
        None
        if traced.delivery_id.startswith(RESERVED_IDS)
        else _webhook(traced, trace, request_id, api_source)
    )
    destination = f"{message.exchange}:{message.routing_key}"
    publish = Span(
        type=SpanType.PUBLISH,
        name=f"publish {destination}",
        trace_id=trace.trace_id,
        span_id=trace.parent_id,
        parent_id=webhook.span_id if webhook else _parent_id(traced, trace),
        started_at=traced.sent_at,
        ended_at=traced.confirmed_at,
        attributes={
            "messaging.system": broker,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": destination,
            "messaging.message.conversation_id": request_id,
            "messaging.message.body.size": len(traced.request),
        },
    )
    return (webhook, publish) if webhook else (publish,)


def _webhook(traced: TracedRequest, trace: Trace, request_id: str, api_source: str) -> Span:
    by_api = traced.source_name == api_source
    route = "/api/v1/jobs" if by_api else f"/webhooks/{traced.source_name}"
    return Span(
        type=SpanType.WEBHOOK,
        name=f"POST {route}",
        trace_id=trace.trace_id,
        span_id=webhook_span_id(trace, request_id),
        parent_id=_parent_id(traced, trace),
        started_at=traced.received_at,
        ended_at=traced.received_at if traced.stored_at is None else traced.stored_at,
        attributes={
            "http.request.method": "POST",
            "http.route": route,
            "http.response.status_code": ACCEPTED,
            "solstice.source": traced.source_name,
            "solstice.event": traced.event_name,
            "solstice.delivery.id": traced.delivery_id,
        },
    )


def _parent_id(traced: TracedRequest, trace: Trace) -> str | None:
    """Return the span of the caller's that its `traceparent` named."""
    caller = read_traceparent(traced.headers.get("traceparent"))
    return caller.parent_id if caller is not None and caller.trace_id == trace.trace_id else None
