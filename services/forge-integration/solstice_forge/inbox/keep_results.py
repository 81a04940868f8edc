"""What keeping a delivery comes to, in the words of every inbox. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery

T = TypeVar("T")

DUPLICATE_DELIVERY: Final = "duplicate_delivery"
"""Its source sent this delivery id before."""
DUPLICATE_CONTENT: Final = "duplicate_content"
"""The event was told before, under another id or by another hook."""


def contents_of(delivery: NewDelivery) -> tuple[str, ...]:
    """The contents it is recognised by; none when it asks for nothing."""
    return () if delivery.content_key is None else (delivery.content_key, *delivery.also)


def repeated_by(delivery: NewDelivery, known: Mapping[object, T], default: T | None = None) -> T:
    """What is known of the content that it repeats: of its own first."""
    found = next((known[key] for key in contents_of(delivery) if key in known), default)
    if found is None:
        raise LookupError(delivery.delivery_id)
    return found


def new(delivery: NewDelivery) -> KeepResult:
    """It was not there before."""
    return KeepResult(
        delivery_id=delivery.delivery_id,
        decision=Decision.IGNORED if delivery.request_id is None else Decision.ACCEPTED,
        reason=delivery.reason,
        request_ids=() if delivery.request_id is None else (delivery.request_id,),
    )


def duplicate(delivery: NewDelivery, reason: str, request_id: str | None) -> KeepResult:
    """It repeats one that asked for the run `request_id`, or for none."""
    return KeepResult(
        delivery_id=delivery.delivery_id,
        decision=Decision.DUPLICATE,
        reason=reason,
        request_ids=() if request_id is None else (request_id,),
    )
