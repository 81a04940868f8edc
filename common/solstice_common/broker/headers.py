"""Names the headers of messages, and makes those of a dead letter."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Delivery
from solstice_common.values.times import format_timestamp

V = TypeVar("V")

BROKER_COUNTERS: Final = frozenset({"x-delivery-count", "x-acquired-count"})
BROKER_HEADERS: Final = BROKER_COUNTERS | {"x-death"}
BROKER_HEADER_PREFIXES: Final = ("x-first-death-", "x-last-death-")
OWN_PREFIX: Final = "x-solstice-"
"""The beginning of the name of each header of ours."""
IDEMPOTENCY_HEADER: Final = "x-solstice-idempotency-key"
"""The header that stays the same over all attempts to publish one message."""
ATTEMPT_HEADER: Final = "x-solstice-attempt"
"""Which attempt to publish or to process it was, from 1."""
SIGNATURE_HEADER: Final = "x-solstice-signature"
"""Who signed the message (`solstice_common.signing`). Every copy of the message keeps it."""
REASON_HEADER: Final = "x-solstice-reason"
"""Why the message is a dead letter: a code of `dead_letters.reasons`."""
DETAIL_HEADER: Final = "x-solstice-detail"
QUEUE_HEADER: Final = "x-solstice-queue"
"""The queue that the message was in."""
REFUSED_AT_HEADER: Final = "x-solstice-refused-at"
REFUSED_BY_HEADER: Final = "x-solstice-refused-by"
RUN_HEADER: Final = "x-solstice-run"
"""The run of a request that is a dead letter."""
HISTORY_HEADER: Final = "x-solstice-history"
"""A line for each earlier attempt at a run, and for each replay."""
REPLAY_HEADER: Final = "x-solstice-replay"
"""The id of the replay: a message that comes back dead still has it."""
DETAIL_CHARACTERS: Final = 2048
"""The longest detail of a dead letter; all headers must fit one AMQP frame."""
MAX_DEPTH: Final = 16
"""The deepest nesting of tables and arrays in a header; RabbitMQ's own `x-death` has three levels."""
MAX_FIELDS: Final = 2048
"""The most values in all headers of a message, including nested ones."""


def without_broker_headers(headers: Mapping[str, V]) -> dict[str, V]:
    """Return the headers that may be published again.

    RabbitMQ passes a published `x-delivery-count` through as if it were its own, and before 4.0 takes a published
    `x-death` for a cycle and drops the message.
    """
    return {
        key: value
        for key, value in headers.items()
        if key not in BROKER_HEADERS and not key.startswith(BROKER_HEADER_PREFIXES)
    }


def bounded(fields: Mapping[str, V]) -> dict[str, V]:
    """Return the fields that are not nested too deep, and at most MAX_FIELDS values."""
    left, within = MAX_FIELDS, dict[str, V]()
    for name, value in fields.items():
        values = 1 + _nested_values(value) if isinstance(value, dict | list) else 1
        if values > left:
            continue
        left -= values
        within[name] = value
    return within


def bounded_meta(meta: object) -> dict[str, Any]:
    """Return the properties of a message of Redis or NATS, and its headers, within bounds.

    They came as one JSON object, which strangers may have written: what is no object has none.
    """
    if not isinstance(meta, dict):
        return {}
    headers = meta.get("headers")
    if not isinstance(headers, dict):
        return bounded(meta)
    return {**bounded({**meta, "headers": None}), "headers": bounded(headers)}


def refusal_headers(
    delivery: Delivery, refusal: Refuse, *, queue: str, by: str, at: datetime
) -> dict[str, object]:
    """Return the headers of a dead letter: the message's own and the refusal's.

    The refusal's say the reason, detail, queue, time, service and attempt.

    `x-solstice-attempt` is the sender's, or 1. We count ourselves, because a broker's own counters do not
    survive a republish.
    """
    own_headers = without_broker_headers(delivery.headers)
    attempt = own_headers.get(ATTEMPT_HEADER)
    return {
        **own_headers,
        REASON_HEADER: refusal.reason,
        DETAIL_HEADER: refusal.detail[:DETAIL_CHARACTERS],
        QUEUE_HEADER: queue,
        REFUSED_AT_HEADER: format_timestamp(at),
        REFUSED_BY_HEADER: by,
        ATTEMPT_HEADER: attempt if isinstance(attempt, int) and attempt > 0 else 1,
    }


def _nested_values(value: Any) -> int:
    """Return how many values it holds on all levels, without recursion.

    More than MAX_FIELDS when it is too deep.
    """
    count, level = 0, [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return count
        count += len(level)
    return MAX_FIELDS + 1
