"""Reads and writes dead letters as the `meta` of Redis and NATS messages. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter, plain
from solstice_common.broker.dead_letters.hashed_bodies import LargeBody
from solstice_common.broker.headers import BROKER_COUNTERS
from solstice_common.values.times import format_timestamp, parse_timestamp

HIGHEST_PRIORITY: Final = 255
"""AMQP's, an octet."""


def dead_letter_of(
    queue: str,
    body: bytes,
    meta: Mapping[str, Any],
    *,
    message_id: str | None,
    large: LargeBody | None = None,
) -> DeadLetter:
    """Return the dead letter of a message; `message_id` stands in for a missing one.

    A foreign publisher may have written anything: properties that cannot be read are absent.
    """
    headers = meta.get("headers")
    return DeadLetter(
        queue=queue,
        body=body,
        large=large,
        headers=_without_counters(plain(headers)) if isinstance(headers, dict) else {},
        type=_text(meta, "type"),
        correlation_id=_text(meta, "correlation_id"),
        message_id=_text(meta, "message_id") or message_id,
        priority=_priority(meta.get("priority")),
        timestamp=_moment(meta.get("timestamp")),
        content_type=_text(meta, "content_type"),
        app_id=_text(meta, "app_id"),
    )


def meta_of_dead_letter(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return the `meta` under which a dead letter is put back; it keeps its id."""
    meta = {
        "exchange": "",
        "routing_key": dead_letter.queue,
        "type": dead_letter.type,
        "correlation_id": dead_letter.correlation_id,
        "message_id": dead_letter.message_id,
        "timestamp": None if dead_letter.timestamp is None else format_timestamp(dead_letter.timestamp),
        "content_type": dead_letter.content_type,
        "app_id": dead_letter.app_id,
        "priority": dead_letter.priority,
        "headers": _without_counters(dead_letter.headers),
    }
    return {name: value for name, value in meta.items() if value is not None}


def _without_counters(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name not in BROKER_COUNTERS}


def _text(meta: Mapping[str, Any], name: str) -> str | None:
    value = meta.get(name)
    return value if isinstance(value, str) else None


def _priority(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= HIGHEST_PRIORITY:
        return value
    return None


def _moment(value: object) -> datetime | None:
    with suppress(ValueError):
        return parse_timestamp(value) if isinstance(value, str) else None
    return None
