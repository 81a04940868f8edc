"""Writes and reads the entries of streams. Pure.

`body` is the unchanged body, `meta` one JSON object of everything else.

`docs/messages.md` documents the record for publishers in other languages; only `body` is required.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from solstice_common.broker.headers import IDEMPOTENCY_HEADER, bounded_meta, without_broker_headers
from solstice_common.broker.protocol import (
    HELD_BODY_BYTES,
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
WRITTEN: Final = [b"body", b"meta"]
"""The fields of an entry that our publish script wrote."""


class NewStreamEntry(Value, frozen=True, kw_only=True):
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


def entry_of(message: Message, message_id: str) -> NewStreamEntry | Published:
    """Return the entry of a message, or why no queue of Redis carries it."""
    try:
        headers = without_broker_headers(message.headers)
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
        # The properties beside the headers are short, so most need no second look.
        if len(meta) > HEADERS_BYTES and (size := len(orjson.dumps(headers))) > HEADERS_BYTES:
            return _rejected(f"its headers take {size} bytes, this broker carries {HEADERS_BYTES}")
        return NewStreamEntry(
            exchange=message.exchange,
            routing_key=message.routing_key,
            key=str(headers.get(IDEMPOTENCY_HEADER, "")),
            repeat=message.repeat,
            meta=meta,
            body=message.body,
        )
    except (ValueError, TypeError) as error:
        return _rejected(f"Redis cannot carry it: {error}")


class StreamDelivery:
    """A Delivery of an entry, with the number of its failed deliveries.

    A foreign publisher may have written anything: properties that cannot be read are absent. `meta` is read when
    a property is first asked for: most consumers need only the body.
    """

    __slots__ = (
        "_fields",
        "_headers",
        "_meta",
        "body",
        "failed_deliveries",
        "omitted_bytes",
        "redelivered",
        "tag",
    )

    def __init__(
        self,
        tag: bytes,
        fields: Sequence[bytes],
        *,
        failed_deliveries: int = 0,
        redelivered: bool = False,
        omitted_bytes: int = 0,
    ) -> None:
        """`fields` are names and values in turn, as the server lists them.

        `omitted_bytes` is the size of an entry whose body was left out.
        """
        self.tag = tag
        self.failed_deliveries = failed_deliveries
        self.redelivered = redelivered
        self.omitted_bytes = omitted_bytes
        self._fields = fields
        self._meta: Mapping[str, Any] | None = None
        self._headers: Mapping[str, object] | None = None
        self.body = fields[1] if fields[::2] == WRITTEN else self.fields.get(b"body", b"")

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """All that the entry has; of two fields of one name, the last."""
        return dict(zip(self._fields[::2], self._fields[1::2], strict=True))

    @property
    def exchange(self) -> str:
        return self._text("exchange") or ""

    @property
    def routing_key(self) -> str:
        return self._text("routing_key") or ""

    @property
    def type(self) -> str | None:
        return self._text("type")

    @property
    def correlation_id(self) -> str | None:
        return self._text("correlation_id")

    @property
    def message_id(self) -> str:
        return self._text("message_id") or self.tag.decode()

    @property
    def headers(self) -> Mapping[str, object]:
        if self._headers is None:
            found = self._read_meta().get("headers")
            headers = without_broker_headers(found) if isinstance(found, dict) else {}
            if self.failed_deliveries:
                headers[COUNT_HEADER] = self.failed_deliveries
            self._headers = headers
        return self._headers

    def header(self, name: str) -> object:
        return self.headers.get(name)

    def _text(self, name: str) -> str | None:
        value = self._read_meta().get(name)
        return value if isinstance(value, str) else None

    def _read_meta(self) -> Mapping[str, Any]:
        if self._meta is None:
            self._meta = meta_of(self.fields)
        return self._meta


def meta_of(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the object in `meta`, within bounds; empty when there is none."""
    try:
        return bounded_meta(orjson.loads(fields.get(b"meta", b"{}")))
    except ValueError:
        return {}


def dead_meta(
    fields: Mapping[bytes, bytes], *, routing_key: str, message_id: str, headers: Mapping[str, object]
) -> bytes:
    """Return the `meta` of a dead letter, without the exchange, which the script adds.

    All other properties of the message stay, so that it can be replayed unchanged.
    """
    meta = {**meta_of(fields), "routing_key": routing_key, "message_id": message_id, "headers": headers}
    meta.pop("exchange", None)
    return orjson.dumps(meta)


def _rejected(detail: str) -> Published:
    return Published(PublishStatus.REJECTED, detail)
