"""Builds the broker message of a job request or a request to cancel. Pure."""

from typing import Final

import orjson

from solstice_common.broker.headers import ATTEMPT_HEADER, IDEMPOTENCY_HEADER
from solstice_common.broker.protocol import HeaderValue, Message
from solstice_common.messages import JobCancelV1, Priority
from solstice_common.messages.priorities import PRIORITY_NUMBERS, named_class
from solstice_common.topology import CANCELS, Route

TRACE_HEADER: Final = "traceparent"


def publication(body: bytes, jobs: Route, *, attempt: int) -> Message:
    """Return the message of a request; `attempt` counts our tries from 1.

    A job request takes the route of `jobs` for its priority class, a request to cancel its own. `body`, its canonical
    bytes, was validated when it was made, perhaps by another version: it is published unchanged, and an orchestrator
    that does not understand it makes it a dead letter.
    """
    request = orjson.loads(body)
    cancels = request["schema_version"] == JobCancelV1.VERSION
    priority = named_class(request.get("priority") or Priority.DEFAULT)
    route, own_id = (CANCELS, request["cancel_id"]) if cancels else (jobs.of(priority), request["request_id"])
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
        priority=None if priority is None else PRIORITY_NUMBERS[priority],
    )
