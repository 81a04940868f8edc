"""Connections of people's commands, over aio-pika: no message ends the reading.

pamqp ends a connection over a header that it cannot decode: nested thousands deep, or not UTF-8. RabbitMQ would deliver
that message again to the next connection, so one dead letter would hide all others. Messages are rewritten here before
aio-pika sees them, without what cannot be read.
"""

import contextlib
import struct
import time
from asyncio import StreamReader
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any, Final

import aio_pika
from aiormq.exceptions import AMQPError
from pamqp import commands as spec
from pamqp.body import ContentBody
from yarl import URL

from solstice_common.broker.rabbitmq.frames import (
    BODY,
    DELIVER,
    HEADER,
    METHOD,
    TAG_AND_BITS,
    FrameFilter,
    Received,
    UnreadHeader,
    content_header,
    frame,
)
from solstice_common.broker.rabbitmq.link_errors import LinkLost, link_errors
from solstice_common.broker.rabbitmq.rabbitmq_address import RabbitMQAddress, rabbitmq_address
from solstice_common.broker.rabbitmq.received_properties import publishable
from solstice_common.broker.rabbitmq.tools.spooled_messages import ChannelDeliveries, DeliveryHandler
from solstice_common.broker.rabbitmq.wire import HEARTBEAT_SECONDS, FilteredTransport

CONNECT_SECONDS: Final = 10.0
NO_PROPERTIES: Final = b"\0\0"


class ToolConnection(aio_pika.Connection):
    """A connection that is not renewed; the next command makes its own (decision 0002)."""

    def __init__(self, url: URL, **options: Any) -> None:
        super().__init__(url, **options)
        self.kwargs["transport_factory"] = FilteredTransport(self.url.scheme, self._readable)
        self._frames: _ReadableFrames | None = None
        self._arrivals: dict[int, ChannelDeliveries] = {}

    @property
    def silent_seconds(self) -> float:
        """For how long no part of a message has arrived."""
        return float("inf") if self._frames is None else time.monotonic() - self._frames.content_at

    @contextmanager
    def receiving(self, channel: int, receiver: DeliveryHandler) -> Iterator[ChannelDeliveries]:
        """Pass the deliveries of a channel to `receiver`, and none to aio-pika.

        It would hold whole bodies. After an error or a cancellation it gets none either, until the channel has another receiver.
        """
        arrivals = self._arrivals[channel] = ChannelDeliveries(receiver)
        try:
            yield arrivals
        finally:
            arrivals.stop()

    def _readable(self, reader: StreamReader) -> FrameFilter:
        self._frames = _ReadableFrames(reader, self._arrivals)
        return self._frames


@asynccontextmanager
async def tool_connection(url: str, name: str) -> AsyncIterator[tuple[ToolConnection, str]]:
    """Connect for a person's command under a name; also yield the address to show.

    BrokerUnavailable when that fails.
    """
    address = rabbitmq_address(url)
    address.check()
    with reported(address.shown):
        connection = await _connect(address, name)
    try:
        yield connection, address.shown
    finally:
        with contextlib.suppress(AMQPError, OSError, RuntimeError):
            await connection.close()


@contextmanager
def reported(url: str, needed: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Turn every error about a dead link into BrokerUnavailable, a refusal into RightMissing.

    `needed` are the rights of the call, see `lost_link`.
    """
    try:
        with link_errors(needed):
            yield
    except LinkLost as lost:
        raise lost.at(url) from lost


async def _connect(address: RabbitMQAddress, name: str) -> ToolConnection:
    """Return a connection to the first host that gives one, else the last one's error."""
    tls = None if address.tls is None else address.tls.context()
    for host in address.hosts:
        url = address.at(host)
        if "heartbeat" not in url.query:
            url = url.extend_query(heartbeat=HEARTBEAT_SECONDS)
        try:
            return await aio_pika.connect(
                url,
                timeout=CONNECT_SECONDS,
                ssl_context=tls,
                client_properties={"connection_name": name},
                connection_class=ToolConnection,
            )
        except (AMQPError, OSError, TimeoutError):
            if host == address.hosts[-1]:
                raise
    raise AssertionError("an address has a host")


class _ReadableFrames(FrameFilter):
    """A filter that passes frames on, and of messages what pamqp can read."""

    def __init__(self, reader: StreamReader, arrivals: Mapping[int, ChannelDeliveries]) -> None:
        """`arrivals` take the deliveries of their channels."""
        super().__init__(reader, lambda _channel, _frame: False)
        self.content_at = time.monotonic()
        """When the last part of a message arrived."""
        self._arrivals = arrivals

    def _left(self, frames: Sequence[Received]) -> bytes:
        if any(not raw for _, _, raw in frames):
            self.content_at = time.monotonic()
        return b"".join([_readable(*received) for received in frames if not self._is_taken(*received)])

    def _is_taken(self, channel: int, received: object, raw: bytes) -> bool:
        arrivals = self._arrivals.get(channel)
        return arrivals is not None and not raw and arrivals.take(received)


def _readable(channel: int, received: object, raw: bytes) -> bytes:
    match received:
        case UnreadHeader():
            return frame(HEADER, channel, content_header(_properties(received), received.body_size))
        case ContentBody():
            return frame(BODY, channel, received.value)
        case spec.Basic.Deliver():
            return frame(METHOD, channel, _deliver(received))
        case _:
            return raw


def _properties(header: UnreadHeader) -> bytes:
    """Return the flags and values of the properties that can be read."""
    properties = header.read()
    if properties.headers is not None:
        carried = {name: publishable(value) for name, value in properties.headers.items()}
        properties.headers = {name: value for name, value in carried.items() if value is not None}
    try:
        return properties.marshal()
    except (TypeError, ValueError, OverflowError, struct.error):
        return NO_PROPERTIES


def _deliver(deliver: spec.Basic.Deliver) -> bytes:
    return b"".join(
        [
            DELIVER,
            _short(deliver.consumer_tag),
            TAG_AND_BITS.pack(deliver.delivery_tag or 0, bool(deliver.redelivered)),
            _short(deliver.exchange),
            _short(deliver.routing_key),
        ]
    )


def _short(text: str | None) -> bytes:
    # In ASCII: a character that stands for an unreadable byte would take more than that byte.
    data = (text or "").encode("ascii", "replace")[:255]
    return bytes((len(data),)) + data
