"""The results of storing a delivery, the same for every inbox. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery

T = TypeVar("T")

DUPLICATE_DELIVERY: Final = "duplicate_delivery"
"""Its source has already sent this delivery id."""
DUPLICATE_CONTENT: Final = "duplicate_content"
"""The event came before under another delivery id or from another hook."""


def contents_of(delivery: NewDelivery) -> tuple[str, ...]:
    """Return the content keys of the delivery; none when it asks for nothing."""
    return () if delivery.content_key is None else (delivery.content_key, *delivery.other_content_keys)


def repeated_by(delivery: NewDelivery, known: Mapping[object, T], default: T | None = None) -> T:
    """Return the known value of the content that it repeats; its own key comes first."""
    original = next((known[key] for key in contents_of(delivery) if key in known), default)
    if original is None:
        raise LookupError(delivery.delivery_id)
    return original


def new(delivery: NewDelivery) -> KeepResult:
    """Return the result for a delivery that was not stored before."""
    return KeepResult(
        delivery_id=delivery.delivery_id,
        decision=Decision.IGNORED if delivery.request_id is None else Decision.ACCEPTED,
        reason=delivery.reason,
        request_ids=() if delivery.request_id is None else (delivery.request_id,),
    )


def duplicate(delivery: NewDelivery, reason: str, request_id: str | None) -> KeepResult:
    """Return the result for a copy; `request_id` is the original's run, if any."""
    return KeepResult(
        delivery_id=delivery.delivery_id,
        decision=Decision.DUPLICATE,
        reason=reason,
        request_ids=() if request_id is None else (request_id,),
    )
