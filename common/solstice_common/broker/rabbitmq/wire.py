"""One AMQP connection on aiormq, on a socket that we also read and write.

aiormq spends a task, a future and several small writes on each message. Our channel gets each frame when it
is read, and writes many frames at once; a blocked connection shows its reason, and closing cannot hang. We
use only aiormq's public `transport_factory`. We rely on two properties that aiormq does not promise: it
writes only whole frames, and uses its reader in one way.
`tests/unit/common/broker/rabbitmq/test_rabbitmq_wire.py` checks both.
"""

import asyncio
import contextlib
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from aiormq.abc import AbstractChannel
from aiormq.connection import Connection, TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPError
from pamqp import commands as spec
from pamqp.body import ContentBody
from yarl import URL

from solstice_common.addresses.hosts import Host
from solstice_common.addresses.tls import explained
from solstice_common.broker.links.supervised_link import CONNECT_SECONDS
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.broker.rabbitmq.frames import FrameFilter, UnreadHeader
from solstice_common.broker.rabbitmq.link_errors import LinkLost, describe, link_errors
from solstice_common.broker.rabbitmq.rabbitmq_address import RabbitMQAddress
from solstice_common.errors import ConfigurationError

HEARTBEAT_SECONDS: Final = 10
"""The heartbeat, unless the URL gives one.

A dead link is noticed after about 33 s, instead of aiormq's 200.
"""
CLOSE_SECONDS: Final = 2.5
LEAST_FRAME_BYTES: Final = 4096
"""The frame size that every broker takes."""
RPC_SECONDS: Final = 15.0


class ChannelUser(Protocol):
    """A receiver of a channel's frames: one by one, in order, never concurrently.

    A body above HELD_BODY_BYTES is omitted.
    """

    def delivered(self, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes) -> None: ...

    def returned(self, frame: spec.Basic.Return, header: UnreadHeader) -> None: ...

    def confirmed(self, frame: spec.Basic.Ack | spec.Basic.Nack) -> None: ...


class WireChannel:
    """A channel that passes content to `user` and writes many frames at once."""

    def __init__(
        self, calls: AbstractChannel, writer: StreamWriter, user: ChannelUser, frame_bytes: int
    ) -> None:
        self.calls: Final = calls
        """aiormq's channel: declares, subscribes, closes."""
        self.number: Final = calls.number
        self.max_content_size: Final = frame_bytes
        """The most bytes of a message in one frame."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the broker's reason, as soon as writing is no longer allowed."""
        calls.closing.add_done_callback(lambda closing: self._end(_why(closing)))
        self._writer = writer
        self._user = user
        self._method: spec.Basic.Deliver | spec.Basic.Return | None = None
        self._header: UnreadHeader | None = None
        self._body: list[bytes] = []
        self._missing = 0

    async def write(self, payload: bytes) -> None:
        """Write frames; return when the operating system has taken them.

        LinkLost when it no longer can.
        """
        if self.ended.done():
            raise LinkLost(self.ended.result())
        try:
            self._writer.write(payload)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            # aiormq is closing the connection: its last frame is written, and the end of the channel is not
            # read yet.
            raise LinkLost(describe(error)) from error

    def take(self, frame: object) -> bool:
        """Pass content or a confirm to the user; return whether it was one."""
        if isinstance(frame, (spec.Basic.Deliver, spec.Basic.Return)):
            self._method = frame
        elif isinstance(frame, UnreadHeader):
            self._header, self._missing, self._body = frame, frame.body_size, []
            if not self._missing:
                self._complete()
        elif isinstance(frame, ContentBody):
            # A stranger's message may be larger than the memory of this process.
            if self._header is not None and self._header.body_size <= HELD_BODY_BYTES:
                self._body.append(frame.value)
            self._missing -= len(frame.value)
            if self._missing <= 0:
                self._complete()
        elif isinstance(frame, (spec.Basic.Ack, spec.Basic.Nack)):
            self._user.confirmed(frame)
        else:
            if isinstance(frame, spec.Channel.Close):
                # At once: a frame that we write after aiormq's Close-Ok would end the whole connection.
                self._end(str(frame.reply_text))
            return False
        return True

    def _complete(self) -> None:
        method, header, self._method, self._header = self._method, self._header, None, None
        if header is None:
            return
        if isinstance(method, spec.Basic.Deliver):
            self._user.delivered(method, header, b"".join(self._body))
        elif method is not None:
            self._user.returned(method, header)

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


class FilteredTransport(TransportFactory):
    """A transport that opens the socket as aiormq does, and keeps it.

    aiormq reads what the filter leaves, and its close cannot hang.
    """

    def __init__(self, scheme: str, filtering: Callable[[StreamReader], FrameFilter]) -> None:
        self._factory = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self._filtering = filtering
        self._reading: asyncio.Task[None] | None = None
        self.writer: StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[StreamReader, StreamWriter]:
        reader, writer = await self._factory.create(url, **options)
        self.writer = writer
        if writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
            # TCP can connect a socket to itself on an ephemeral port without a listener.
            self.abort()
            raise ConnectionRefusedError("no server listens there (the socket had connected to itself)")
        frames = self._filtering(reader)
        self._reading = asyncio.create_task(frames.run(), name="broker-read")
        return frames.rest, writer

    def abort(self) -> None:
        """Drop the socket, which also ends reading."""
        if self.writer is not None:
            # Before Python 3.11.3 a TLS connection that has ended cannot be aborted: it lost its protocol.
            with contextlib.suppress(AttributeError):
                self.writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()


class Wire:
    """One connection, opened by `open_wire`."""

    def __init__(self, url: str | URL, name: str, tls: ssl.SSLContext | None = None) -> None:
        address = URL(url)
        if "heartbeat" not in address.query:
            address = address.extend_query(heartbeat=HEARTBEAT_SECONDS)
        self._transport = FilteredTransport(address.scheme, lambda reader: FrameFilter(reader, self._take))
        self._connection = Connection(
            address,
            context=tls,
            transport_factory=self._transport,
            client_properties={"connection_name": name},
        )
        self.blocked: str | None = None
        """Why the broker takes no publishes at the moment."""
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.refusal: str | None = None
        """Why the broker closed the connection; aiormq reports it only for an open connection."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the connection is lost."""
        self._channels: dict[int, WireChannel] = {}

    @property
    def server_major(self) -> int:
        """The server's major version; 0 where it says none."""
        major = str(self._connection.server_properties.get("version", "")).partition(".")[0]
        return int(major) if major.isdecimal() else 0

    @property
    def header_bytes(self) -> int:
        """The largest content header the broker takes: a frame minus its eight bytes."""
        return max(self._connection.connection_tune.frame_max, LEAST_FRAME_BYTES) - 8

    async def connect(self) -> None:
        """Connect, and negotiate with the broker."""
        await self._connection.connect()
        self._connection.closing.add_done_callback(lambda closing: self.ended.set_result(_why(closing)))

    async def open_channel(self, user: ChannelUser, *, publisher_confirms: bool = False) -> WireChannel:
        """Return a new channel; LinkLost when the connection is lost or does not answer."""
        with link_errors():
            async with asyncio.timeout(RPC_SECONDS):
                calls = await self._connection.channel(publisher_confirms=publisher_confirms)
            writer = self._transport.writer
            if writer is None:
                raise LinkLost("there is no connection")
            channel = self._channels[calls.number] = WireChannel(calls, writer, user, self.header_bytes)
            return channel

    async def close_wire(self) -> None:
        """Close within a few seconds in any state; never raises."""
        closing = asyncio.ensure_future(self._connection.close())
        try:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        finally:
            self.abort()
            closing.cancel()
            await asyncio.wait([closing], timeout=1.0)
            _retrieve_error(closing)

    def abort(self) -> None:
        """Drop the socket, without a message to the broker."""
        self._transport.abort()

    def _take(self, number: int, frame: object) -> bool:
        channel = self._channels.get(number)
        if channel is not None:
            return channel.take(frame)
        match frame:
            case spec.Connection.Blocked():
                self.blocked = str(frame.reason)
                self.unblocked.clear()
            case spec.Connection.Unblocked():
                self.blocked = None
                self.unblocked.set()
            case spec.Connection.Close():
                self.refusal = f"{frame.reply_code} {frame.reply_text}"
                return False
            case _:
                return False
        return True


@asynccontextmanager
async def open_wire_at(address: RabbitMQAddress, host: Host, name: str) -> AsyncIterator[Wire]:
    """Connect to a host, which shows the connection as `name`.

    LinkLost when there is none within the time.
    """
    try:
        tls = None if address.tls is None else address.tls.context()
        wire = Wire(address.at(host), name, tls)
    except ConfigurationError as error:
        # A file that existed at the start is being replaced, or was removed.
        raise LinkLost(str(error)) from None
    try:
        await _connect(wire)
    except LinkLost as lost:
        raise LinkLost(explained(str(lost), address.tls)) from lost
    try:
        yield wire
    finally:
        await wire.close_wire()


async def _connect(wire: Wire) -> None:
    connecting = asyncio.ensure_future(wire.connect())
    try:
        # In a task of its own: aiormq may suppress a cancellation while it connects.
        await asyncio.wait([connecting], timeout=CONNECT_SECONDS)
        with link_errors():
            try:
                _result(connecting)
            except (StopAsyncIteration, EOFError) as error:
                # aiormq reports only this when the server disconnects before the first frame is read.
                raise LinkLost("the connection was closed before the broker said hello") from error
            except AMQPError as error:
                raise LinkLost(wire.refusal or describe(error)) from error
    except BaseException:
        connecting.cancel()
        wire.abort()
        await asyncio.wait([connecting], timeout=1.0)
        _retrieve_error(connecting)
        raise


def _why(closing: "asyncio.Future[None]") -> str:
    error = None if closing.cancelled() else closing.exception()
    return "the connection was closed" if error is None else describe(error)


def _result(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        raise TimeoutError
    task.result()


def _retrieve_error(task: "asyncio.Future[Any]") -> None:
    """Mark the outcome as retrieved for asyncio."""
    if task.done() and not task.cancelled():
        task.exception()
