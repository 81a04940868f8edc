"""Decides whether a webhook call is genuine and readable, and what it asks for. Pure.

It runs before any byte is written.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from solstice_common.http.tokens import DeniedReason
from solstice_common.messages.fields import RESERVED_IDS
from solstice_common.values.value import Value
from solstice_forge.decisions.lockstep import Steps, walk
from solstice_forge.decisions.plan import PlanOptions, UnderstoodDelivery, understand
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.events import Event, Ignored, Malformed, Rerun
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported

MAX_NAME: Final = 255
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


RefusedReason = (
    DeniedReason
    | Literal[
        "bad_idempotency_key",
        "bad_signature",
        "body_incomplete",
        "idempotency_key_reused",
        "inbox_unavailable",
        "invalid_parameter",
        "malformed",
        "missing_header",
        "not_found",
        "overloaded",
        "too_large",
        "too_many_requests",
        "unknown_source",
        "unsupported_content_type",
    ]
)
"""The reasons of the webhooks and of the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The call is not taken, for this reason.

    `status` is the HTTP answer, `reason` one word of a closed list, `detail` says what to do.
    """

    status: int
    reason: RefusedReason
    detail: str


class WebhookCall(Value, frozen=True):
    """One call to a webhook of `source`; `now` in seconds since the epoch."""

    source: WebhookSource
    headers: Headers
    body: bytes
    now: float


def triage(
    source: WebhookSource, headers: Headers, body: bytes, *, now: float, verify: bool = True
) -> UnderstoodDelivery | Refused:
    """Return the meaning of this call to `source`, or its refusal.

    The signature comes first: nothing else of an unproven body is read. Without `verify`, a recorded delivery whose
    secret or time has expired is read as if it were genuine.
    """
    return walk(triaging(WebhookCall(source, headers, body, now), verify=verify))


def triaging(call: WebhookCall, *, verify: bool = True) -> Steps[UnderstoodDelivery | Refused]:
    """Run `triage` in steps, for many calls side by side."""
    source, headers, now = call.source, call.headers, call.now
    payload = _genuine(source, headers, call.body, now) if verify else payload_of(headers, call.body)
    yield
    if isinstance(payload, Unsupported):
        return Refused(status=415, reason="unsupported_content_type", detail=payload.detail)
    if isinstance(payload, Refused):
        return payload
    delivery_id = _plain(source.forge.delivery_id(headers))
    event_name = _plain(source.forge.event_name(headers))
    if delivery_id is None or event_name is None or delivery_id.startswith(RESERVED_IDS):
        return _unnamed(delivery_id, event_name, source)
    event = source.forge.parse(event_name, payload)
    if isinstance(event, Malformed):
        return _unusable(event_name, event)
    yield
    trace = headers.get("traceparent", "")
    options = PlanOptions(
        delivery_id=delivery_id,
        received_at=now,
        traceparent=trace if _TRACEPARENT.fullmatch(trace) else None,
        requires_lookup=_requires_lookup(event, source),
    )
    understood = understand(event, source, payload, options, event_name=event_name)
    return _unusable(event_name, understood) if isinstance(understood, Malformed) else understood


def proof_lacking(source: WebhookSource, headers: Headers) -> Refused | None:
    """Return why no body can prove these headers genuine; None when one may."""
    forged = source.forge.unproven(headers, source.secrets)
    return None if forged is None else Refused(status=401, reason="bad_signature", detail=forged.detail)


def _genuine(
    source: WebhookSource, headers: Headers, body: bytes, now: float
) -> bytes | Refused | Unsupported:
    match source.forge.verify(headers, body, source.secrets, now):
        case Genuine(payload=payload):
            return payload
        case Forged(detail=detail):
            return Refused(status=401, reason="bad_signature", detail=detail)
        case Unsupported() as unsupported:
            return unsupported


def _requires_lookup(event: Event | Ignored, source: WebhookSource) -> bool:
    """Whether to ask the forge about an event that lacks nothing.

    A re-run lacks nothing, but is trusted only if the forge says whose commit it is.
    """
    return isinstance(event, Rerun) and source.url is not None and bool(source.token or source.app)


def _plain(name: str | None) -> str | None:
    """Return the name if it is printable ASCII without a space at either end."""
    is_plain = (
        name and len(name) <= MAX_NAME and name.isascii() and name.isprintable() and name == name.strip(" ")
    )
    return name if is_plain else None


def _unnamed(delivery_id: str | None, event_name: str | None, source: WebhookSource) -> Refused:
    """Return why the headers name no delivery of a forge."""
    if delivery_id is not None and event_name is not None:
        return Refused(
            status=400,
            reason="malformed",
            detail=f"the delivery id {delivery_id[:40]!r} begins as ids of our own do, which no forge sends",
        )
    what = "delivery id" if delivery_id is None else "event name"
    return Refused(
        status=400,
        reason="missing_header",
        detail=f"the header with the {what} is missing or unusable: is the sender a {source.forge.SOURCE}, "
        "and does a proxy on the way drop headers?",
    )


def _unusable(event_name: str, malformed: Malformed) -> Refused:
    return Refused(
        status=400, reason="malformed", detail=f"this {event_name} cannot be used: {malformed.detail}"
    )
