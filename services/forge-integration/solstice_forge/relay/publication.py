"""Builds the broker message of a job request or a request to cancel. Pure."""

from types import MappingProxyType
from typing import Final

import orjson

from solstice_common.broker.protocol import IDEMPOTENCY_HEADER, HeaderValue, Message
from solstice_common.messages import JobCancelV1, Priority
from solstice_common.topology import CANCELS, Route

ATTEMPT_HEADER: Final = "x-solstice-attempt"
TRACE_HEADER: Final = "traceparent"

AMQP_PRIORITY: Final = MappingProxyType(
    {Priority.CRITICAL: 9, Priority.HIGH: 7, Priority.DEFAULT: 4, Priority.LOW: 1}
)
"""Shown on the management page; quorum queues serve priorities above 4 first."""


def publication(body: bytes, jobs: Route, *, attempt: int) -> Message:
    """Return the message of a request; `attempt` counts our tries from 1.

    A job request takes the route `jobs`, a request to cancel its own. `body`, its canonical bytes, was validated when
    it was made, perhaps by another version: it is published unchanged, and an orchestrator that does not understand it
    makes it a dead letter.
    """
    request = orjson.loads(body)
    cancels = request["schema_version"] == JobCancelV1.VERSION
    route, own_id = (CANCELS, request["cancel_id"]) if cancels else (jobs, request["request_id"])
    headers: dict[str, HeaderValue] = {
        ATTEMPT_HEADER: attempt,
        IDEMPOTENCY_HEADER: request.get("idempotency_key") or own_id,
    }
    if trace := request.get("traceparent"):
        headers[TRACE_HEADER] = trace
    return Message(
        exchange=route.exchange,
        routing_key=route.routing_key,
        body=body,
        type=request["schema_version"],
        correlation_id=own_id,
        headers=headers,
        priority=AMQP_PRIORITY.get(request.get("priority") or Priority.DEFAULT),
    )
