"""Publishes AMQP 0-9-1 byte by byte, with messages that no client would send.

Source: the AMQP 0-9-1 specification, sections 2.3.5 (frames, content headers) and 4.2 (their layout);
rabbitmq.com/docs/amqp-0-9-1-errata (the letters of field types).
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote, urlsplit

METHOD, HEADER, BODY = 1, 2, 3
BASIC: Final = 60
HEADERS_FLAG, CORRELATION_ID_FLAG = 1 << 13, 1 << 10
TIMEOUT_SECONDS: Final = 60.0

_START, _TUNE, _OPEN_OK, _CLOSE = (10, 10), (10, 30), (10, 41), (10, 50)
_CHANNEL_OPEN_OK, _CHANNEL_CLOSE = (20, 11), (20, 40)
_SELECT_OK, _ACK, _NACK = (85, 11), (60, 80), (60, 120)


class BrokerClosed(Exception):
    """The broker closed the channel or the connection because of these bytes."""


def short(text: bytes) -> bytes:
    """Encode a short string."""
    return bytes((len(text),)) + text


def long(data: bytes) -> bytes:
    """Encode a long string: four bytes of length, then the content.

    Tables and arrays have the same layout.
    """
    return struct.pack(">I", len(data)) + data


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    """Encode one field of a table."""
    return short(name) + kind + value


def nested(depth: int, *, kind: bytes = b"A") -> bytes:
    """The content of `depth` arrays (`A`) or tables (`F`) inside each other."""
    content = b""
    for _ in range(depth - 1):
        content = (b"" if kind == b"A" else short(b"k")) + kind + long(content)
    return content


def properties(table: bytes, *, correlation_id: bytes | None = None) -> bytes:
    """The flags and values of a message whose header table has this content."""
    flags = HEADERS_FLAG | (0 if correlation_id is None else CORRELATION_ID_FLAG)
    return struct.pack(">H", flags) + long(table) + (b"" if correlation_id is None else short(correlation_id))


class RawPublisher:
    """One connection with one channel in confirm mode; leave it with `with`."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection(
            (address.hostname, address.port or 5672), timeout=TIMEOUT_SECONDS
        )
        self._stream = self._socket.makefile("rb")
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(_START)
        user, password = unquote(address.username or "guest"), unquote(address.password or "guest")
        answer = long(b"") + short(b"PLAIN") + long(f"\0{user}\0{password}".encode()) + short(b"en_US")
        self._method(0, (10, 11), answer)
        limits = self._expect(_TUNE)
        self.frame_max = int.from_bytes(limits[2:6], "big")
        """The largest frame that the broker takes."""
        self._method(0, (10, 31), limits[:6] + b"\x00\x00")
        self._method(0, (10, 40), short(unquote(address.path[1:]).encode()) + short(b"") + b"\x00")
        self._expect(_OPEN_OK)
        self._method(1, (20, 10), short(b""))
        self._expect(_CHANNEL_OPEN_OK)
        self._method(1, (85, 10), b"\x00")
        self._expect(_SELECT_OK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> bool:
        """Publish these bytes as properties; return whether the broker confirms them.

        A routing key may have bytes that are not UTF-8, as `surrogateescape` writes them. Raises BrokerClosed when the broker would not even read it; the publisher is of no use then.
        """
        names = short(exchange.encode()) + short(routing_key.encode(errors="surrogateescape"))
        try:
            self._method(1, (60, 40), b"\x00\x00" + names + b"\x00")
            self._frame(HEADER, 1, struct.pack(">HHQ", BASIC, 0, len(body)) + properties)
            for start in range(0, len(body), self.frame_max - 8):
                self._frame(BODY, 1, body[start : start + self.frame_max - 8])
            return self._expect(_ACK, _NACK)[-1:] != b"" and self._last == _ACK
        except OSError as error:
            raise BrokerClosed(str(error)) from error

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")

    def _method(self, channel: int, method: tuple[int, int], arguments: bytes) -> None:
        self._frame(METHOD, channel, struct.pack(">HH", *method) + arguments)

    def _expect(self, *methods: tuple[int, int]) -> bytes:
        """Read the arguments of the next method, which must be one of these."""
        while True:
            head = self._stream.read(7)
            if len(head) < 7:
                raise BrokerClosed("the connection ended")
            kind, _, size = struct.unpack(">BHI", head)
            payload = self._stream.read(size + 1)[:-1]
            if kind != METHOD:
                continue
            self._last = (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big"))
            if self._last in methods:
                return payload[4:]
            if self._last in {_CLOSE, _CHANNEL_CLOSE}:
                raise BrokerClosed(payload[7 : 7 + payload[6]].decode("utf-8", "replace"))


@contextmanager
def raw_publisher(url: str) -> Iterator[RawPublisher]:
    """A connected publisher."""
    with RawPublisher(url) as publisher:
        yield publisher
