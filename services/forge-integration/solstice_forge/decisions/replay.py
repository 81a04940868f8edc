"""Builds a new run from a stored delivery, by the current rules. Pure.

A person asks for it.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from solstice_forge.decisions.plan import PlanOptions, understand
from solstice_forge.decisions.requests import CANCEL
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.forges.events import ChangeRequest, Command, Ignored, Malformed, Push
from solstice_forge.inbox.log import RecordedDelivery
from solstice_forge.inbox.protocol import Decision, NewDelivery
from solstice_forge.inbox.reading import REPLAY

REASON: Final = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryNotReplayable:
    """Why the delivery cannot be replayed, and what to do instead."""

    detail: str


def replay(
    recorded: RecordedDelivery, source: WebhookSource, *, now: float, token: str, person: str
) -> NewDelivery | DeliveryNotReplayable:
    """Return the delivery to store: the stored body's request under a key of its own.

    Delivery id and content key are both `replay:NUMBER:TOKEN`, so the result is a separate run, also if the event was
    built before. By the current rules it may ask for nothing; that is a delivery, too, with the rule's reason.
    """
    entry = recorded.entry
    if why_not := _missing(recorded):
        return DeliveryNotReplayable(detail=why_not)
    event = source.forge.parse(entry.event_name, recorded.body)
    if isinstance(event, Malformed):
        return DeliveryNotReplayable(
            detail=f"its body cannot be read any more, perhaps another version stored it: {event.detail}"
        )
    key = f"{REPLAY}:{entry.row_id}:{token}"
    if isinstance(event, Push | ChangeRequest | Command):
        # The run is asked for now, whenever the event happened.
        event = replace(event, occurred_at=None)
    options = PlanOptions(delivery_id=key, received_at=now, key=key, ignores_skip_mark=True)
    understood = understand(event, source, recorded.body, options, event_name=entry.event_name)
    if isinstance(understood, Malformed):
        return DeliveryNotReplayable(detail=f"no request can be made of it: {understood.detail}")
    # A form was decoded when it was stored: the body is JSON, also if the sender's header says otherwise.
    headers = {**recorded.headers, "content-type": "application/json"}
    replayed = new_delivery(source, headers, understood, now)
    whose = f"replay of delivery {entry.row_id}, asked for by {person}"
    if isinstance(understood.event, Ignored):
        return replace(replayed, detail=f"{whose}; {replayed.detail}")
    if replayed.reason == CANCEL:
        return replace(replayed, detail=f"{whose}; {replayed.detail}", content_key=key)
    return replace(replayed, reason=REASON, detail=whose, content_key=key)


def _missing(recorded: RecordedDelivery) -> str | None:
    entry = recorded.entry
    if entry.decision is Decision.DUPLICATE:
        return f"it is a copy; replay the delivery that it repeats, {entry.repeats}"
    if recorded.body:
        return None
    if entry.decision is Decision.IGNORED:
        return f"it requested nothing ({entry.reason}), and such deliveries are stored without a body"
    return "its body was removed (FORGE_RETENTION_DAYS); 'solstice rerun RUN' builds the same commit again"
