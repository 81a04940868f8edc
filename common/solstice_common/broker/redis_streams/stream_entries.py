"""Writes and reads the entries of streams. Pure.

`body` is the unchanged body, `meta` one JSON object of everything else.

`docs/messages.md` documents the record for publishers in other languages; only `body` is required.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from solstice_common.broker.headers import bounded_meta, without_broker_headers
from solstice_common.broker.protocol import (
    HELD_BODY_BYTES,
    IDEMPOTENCY_HEADER,
    NO_HEADERS,
    Delivered,
    Message,
    Published,
    PublishStatus,
)
from solstice_common.values.times import format_timestamp
from solstice_common.values.value import Value

MAX_BODY_BYTES: Final = 8 << 20
HEADERS_BYTES: Final = 131_064
"""The size of RabbitMQ's default frame: headers that RabbitMQ refuses are refused here, too."""
DELIVERED_BYTES: Final = HELD_BODY_BYTES + 2 * HEADERS_BYTES
"""The largest entry that is delivered whole."""
COUNT_HEADER: Final = "x-delivery-count"


class Entry(Value, frozen=True, kw_only=True):
    """A message in the form that the publish script expects."""

    exchange: str
    routing_key: str
    key: str
    """The idempotency key, "" without one."""
    repeat: bool
    meta: bytes
    body: bytes

    @property
    def size(self) -> int:
        return len(self.meta) + len(self.body)


def entry_of(message: Message, message_id: str) -> Entry | Published:
    """The entry of a message, or why no queue of Redis carries it."""
    try:
        headers = without_broker_headers(message.headers)
        encoded = orjson.dumps(headers)
        if len(encoded) > HEADERS_BYTES:
            return _rejected(f"its headers take {len(encoded)} bytes, this broker carries {HEADERS_BYTES}")
        if len(message.body) > MAX_BODY_BYTES:
            return _rejected(f"its body has {len(message.body)} bytes, this broker carries {MAX_BODY_BYTES}")
        meta = orjson.dumps(
            {
                "exchange": message.exchange,
                "routing_key": message.routing_key,
                "type": message.type,
                "message_id": message_id,
                "correlation_id": message.correlation_id,
                "timestamp": format_timestamp(message.timestamp),
                "content_type": message.content_type,
                "app_id": message.app_id,
                "priority": message.priority,
                "headers": headers,
            }
        )
        return Entry(
            exchange=message.exchange,
            routing_key=message.routing_key,
            key=str(headers.get(IDEMPOTENCY_HEADER, "")),
            repeat=message.repeat,
            meta=meta,
            body=message.body,
        )
    except (ValueError, TypeError) as error:
        return _rejected(f"Redis cannot carry it: {error}")


def delivered(
    entry_id: bytes, fields: Mapping[bytes, bytes], *, count: int, again: bool, omitted: int = 0
) -> Delivered:
    """The delivery of an entry; `count` is the number of its failed deliveries.

    `omitted` is the size of an entry whose body was left out.

    A foreign publisher may have written anything: properties that cannot be read are absent.
    """
    meta = meta_of(fields)
    headers = meta.get("headers")
    headers = without_broker_headers(headers) if isinstance(headers, dict) else {}
    if count:
        headers[COUNT_HEADER] = count
    return Delivered(
        tag=entry_id,
        body=fields.get(b"body", b""),
        exchange=_text(meta, "exchange") or "",
        routing_key=_text(meta, "routing_key") or "",
        type=_text(meta, "type"),
        correlation_id=_text(meta, "correlation_id"),
        message_id=_text(meta, "message_id") or entry_id.decode(),
        headers=headers or NO_HEADERS,
        redelivered=again,
        omitted_bytes=omitted,
    )


def meta_of(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The object in `meta`, within bounds; empty when there is none."""
    try:
        return bounded_meta(orjson.loads(fields.get(b"meta", b"{}")))
    except ValueError:
        return {}


def dead_meta(
    fields: Mapping[bytes, bytes], *, routing_key: str, message_id: str, headers: Mapping[str, object]
) -> bytes:
    """The `meta` of a dead letter, without the exchange, which the script adds.

    All other properties of the message stay, so that it can be replayed unchanged.
    """
    meta = {**meta_of(fields), "routing_key": routing_key, "message_id": message_id, "headers": headers}
    meta.pop("exchange", None)
    return orjson.dumps(meta)


def _text(meta: Mapping[str, Any], name: str) -> str | None:
    value = meta.get(name)
    return value if isinstance(value, str) else None


def _rejected(detail: str) -> Published:
    return Published(PublishStatus.REJECTED, detail)
