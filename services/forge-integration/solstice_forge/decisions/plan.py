"""Plans what an event asks for, by the rules of its source. Pure."""

from solstice_common.values.value import Value
from solstice_forge.decisions.requests import PlannedCancel, PlannedRun, build_request
from solstice_forge.decisions.ruling import ruling
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.events import Event, Ignored, Malformed, lacks


class PlanOptions(Value, frozen=True, kw_only=True):
    """How the delivery of an event shapes its request; `received_at` in seconds since the epoch."""

    delivery_id: str
    received_at: float
    traceparent: str | None = None
    key: str | None = None
    """Replaces the content key, when a person asks for the same request again."""
    ignores_skip_mark: bool = False
    """Whether the event is built although the commit's message asks not to be."""
    requires_lookup: bool = False
    """Whether the forge is asked about the event even if it lacks nothing."""


def plan(
    event: Event, source: WebhookSource, payload: bytes, options: PlanOptions
) -> PlannedRun | PlannedCancel | Ignored | Malformed | None:
    """Return what the event asks for; None when the forge must be asked first.

    Ignored: the rules do not build it. Malformed: no request can be made of it. `payload` is the delivery's JSON text,
    or empty when it is not available.
    """
    ruled = ruling(event, source, payload, ignores_skip_mark=options.ignores_skip_mark)
    if isinstance(ruled, Ignored):
        return ruled
    if options.requires_lookup or lacks(event):
        return None
    return build_request(
        event,
        source=source,
        ruling=ruled,
        delivery_id=options.delivery_id,
        received_at=options.received_at,
        traceparent=options.traceparent,
        key=options.key,
    )


class UnderstoodDelivery(Value, frozen=True, kw_only=True):
    """A genuine delivery and its meaning.

    `planned` is None when `event` is Ignored, or lacks something that the forge must be asked for.
    """

    delivery_id: str
    event_name: str
    event: Event | Ignored
    planned: PlannedRun | PlannedCancel | None
    payload: bytes
    """The JSON text."""


def understand(
    event: Event | Ignored, source: WebhookSource, payload: bytes, options: PlanOptions, *, event_name: str
) -> UnderstoodDelivery | Malformed:
    """Return the delivery of an event with what it asks for."""
    planned = event if isinstance(event, Ignored) else plan(event, source, payload, options)
    if isinstance(planned, Malformed):
        return planned
    if isinstance(planned, Ignored):
        event, planned = planned, None
    return UnderstoodDelivery(
        delivery_id=options.delivery_id, event_name=event_name, event=event, planned=planned, payload=payload
    )
