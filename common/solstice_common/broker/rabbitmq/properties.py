"""Encodes the properties of a message for AMQP.

The message id is added last, when the message is written.

pamqp checks and encodes each property through several calls, which was most of the cost of a publish.

Source: the AMQP 0-9-1 specification, sections 2.3.5.2 (content headers) and 4.2.5 (strings, tables, timestamps);
rabbitmq.com/docs/amqp-0-9-1-errata (the letters of field types).
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from pamqp import commands as spec

from solstice_common.broker.headers import DETAIL_HEADER, OWN_PREFIX, without_broker_headers
from solstice_common.broker.protocol import HeaderValue, Message
from solstice_common.broker.rabbitmq.received_properties import encoded_size, publishable

Encode = Callable[[str], bytes]
"""The flags and values of all properties, with this message id.

ValueError when AMQP cannot carry one.
"""

_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _PRIORITY = 1 << 15, 1 << 13, 1 << 12, 1 << 11
_CORRELATION_ID, _MESSAGE_ID, _TIMESTAMP, _TYPE, _APP_ID = 1 << 10, 1 << 7, 1 << 6, 1 << 5, 1 << 3
_PERSISTENT: Final = b"\x02"
_LONGEST: Final = 255
_FLAGS: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">I")
_INTEGER: Final = struct.Struct(">q")
_SECONDS: Final = struct.Struct(">Q")

RESERVED_BYTES: Final = 12 + 2 + 4 + 1 + 1 + 8 + 7 * 256
"""Bytes of everything in a dead letter's content header except the headers."""
_SHORT_DETAIL_CHARACTERS: Final = 256


def of_message(message: Message) -> Encode:
    """Return the properties of our message: persistent, without headers reserved for brokers."""

    def encode(message_id: str) -> bytes:
        flags = _CONTENT_TYPE | _DELIVERY_MODE | _MESSAGE_ID | _TIMESTAMP | _TYPE | _APP_ID
        parts = [b"", _word(message.content_type)]
        if headers := without_broker_headers(message.headers):
            flags |= _HEADERS
            parts.append(_table(headers))
        parts.append(_PERSISTENT)
        if message.priority is not None:
            flags |= _PRIORITY
            parts.append(bytes((message.priority,)))
        if message.correlation_id is not None:
            flags |= _CORRELATION_ID
            parts.append(_short(message.correlation_id))
        parts += (
            _short(message_id),
            _SECONDS.pack(int(message.timestamp.timestamp())),
            _word(message.type),
            _word(message.app_id),
        )
        parts[0] = _FLAGS.pack(flags)
        return b"".join(parts)

    return encode


def of_properties(properties: spec.Basic.Properties) -> Encode:
    """Return the properties of a received message, unchanged except for the message id."""

    def encode(message_id: str) -> bytes:
        properties.message_id = message_id
        return properties.marshal()

    return encode


def fitting_headers(headers: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return the headers that can be published within `limit` bytes; the refusal's own go first."""
    chosen: dict[str, Any] = {}
    left = limit
    for name in sorted(headers, key=lambda name: not name.startswith(OWN_PREFIX)):
        value = publishable(headers[name])
        if value is None:
            continue
        size = encoded_size(name, value)
        if size > left and name == DETAIL_HEADER:
            value = str(value)[:_SHORT_DETAIL_CHARACTERS]
            size = encoded_size(name, value)
        if size <= left:
            chosen[name] = value
            left -= size
    return chosen


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST:
        raise ValueError(f"{text[:40]!r}... is longer than {_LONGEST} bytes")
    return bytes((len(data),)) + data


@lru_cache(maxsize=256)
def _word(text: str) -> bytes:
    """`_short` of a text that many messages repeat."""
    return _short(text)


def _table(headers: dict[str, HeaderValue]) -> bytes:
    fields = b"".join([_word(name) + _field(value) for name, value in headers.items()])
    return _LENGTH.pack(len(fields)) + fields


def _field(value: HeaderValue) -> bytes:
    match value:
        case str():
            data = value.encode()
            return b"S" + _LENGTH.pack(len(data)) + data
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return b"l" + _INTEGER.pack(value)
        case _:
            raise TypeError(f"a header may hold text, a number or a boolean, not {type(value).__name__}")
