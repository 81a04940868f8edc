"""Headers of messages: those of brokers, and those of a dead letter."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeVar

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Delivery
from solstice_common.values.times import format_timestamp

V = TypeVar("V")

BROKER_COUNTERS: Final = frozenset({"x-delivery-count", "x-acquired-count"})
BROKER_HEADERS: Final = BROKER_COUNTERS | {"x-death"}
BROKER_HEADER_PREFIXES: Final = ("x-first-death-", "x-last-death-")
SIGNATURE_HEADER: Final = "x-solstice-signature"
"""Who signed the message (`solstice_common.signing`). It stays with the message wherever its body goes."""
DETAIL_CHARACTERS: Final = 2048
"""The longest detail of a dead letter; all headers must fit one AMQP frame."""


def without_broker_headers(headers: Mapping[str, V]) -> dict[str, V]:
    """The headers that may be published again.

    RabbitMQ passes a published `x-delivery-count` through as if it were its own, and before 4.0 takes a published
    `x-death` for a cycle and drops the message.
    """
    return {
        key: value
        for key, value in headers.items()
        if key not in BROKER_HEADERS and not key.startswith(BROKER_HEADER_PREFIXES)
    }


def refusal_headers(
    delivery: Delivery, refusal: Refuse, *, queue: str, by: str, at: datetime
) -> dict[str, object]:
    """The headers of a dead letter.

    Those of the message, and what, why, where, when, by whom, which attempt.

    `x-solstice-attempt` is the sender's, 1 when it gave none: ours, because a broker's own counters do not survive a
    republish.
    """
    own_headers = without_broker_headers(delivery.headers)
    attempt = own_headers.get("x-solstice-attempt")
    return {
        **own_headers,
        "x-solstice-reason": refusal.reason,
        "x-solstice-detail": refusal.detail[:DETAIL_CHARACTERS],
        "x-solstice-queue": queue,
        "x-solstice-refused-at": format_timestamp(at),
        "x-solstice-refused-by": by,
        "x-solstice-attempt": attempt if isinstance(attempt, int) and attempt > 0 else 1,
    }
