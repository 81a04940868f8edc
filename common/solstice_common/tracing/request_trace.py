"""Names the spans of a delivery and of the message that it becomes. Pure."""

from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.trace_context import Trace, trace_of


def message_traceparent(traceparent: str | None, request_id: str, sampler: Sampler) -> str:
    """Return the context of the message: the span of its publishing.

    `traceparent` is the webhook's, if it had one; without, the trace begins with the webhook.
    """
    trace = trace_of(traceparent, request_id, sampler)
    return trace.traceparent(publish_span_id(trace, request_id))


def publish_span_id(trace: Trace, request_id: str) -> str:
    """Return the id of the span of a request's publishing."""
    return trace.span_id("publish", request_id)


def webhook_span_id(trace: Trace, request_id: str) -> str:
    """Return the id of the span of the webhook that made a request."""
    return trace.span_id("webhook", request_id)
