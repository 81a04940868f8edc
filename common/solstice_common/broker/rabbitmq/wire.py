"""One AMQP connection on aiormq; all that depends on aiormq's internals is here.

aiormq spends a task, a future and several small writes on each message. Our channel gets each frame when it is read,
and writes many frames at once. Its public interface offers neither that, nor the reason of a blocked connection, nor a
close that cannot hang. `tests/unit/common/broker/test_rabbitmq_wire.py` names what is used beyond it, and fails when a
new version of aiormq changes it.
"""

import asyncio
import itertools
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import (
    Connection,
    FrameReceiver,
    ReceivedFrame,
    TCPTransportFactory,
    TLSTransportFactory,
    TransportFactory,
)
from aiormq.exceptions import AMQPError, ConnectionClosed
from pamqp import commands as spec
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes
from yarl import URL

from solstice_common.broker.rabbitmq.frames import FrameStream, UnreadHeader

HEARTBEAT_SECONDS: Final = 10
"""The heartbeat, unless the URL gives one.

A dead link is noticed after about 33 s, instead of aiormq's 200.
"""
CLOSE_SECONDS: Final = 2.5
LEAST_FRAME_BYTES: Final = 4096
"""The frame size that every broker takes."""
RPC_SECONDS: Final = 15.0


class LinkLost(Exception):
    """The connection or channel is gone, or did not answer in time."""


@contextmanager
def link_errors() -> Iterator[None]:
    """Turn every error of aiormq about a dead link into LinkLost.

    It surrounds each call to aiormq, and keeps cancellation intact.

    aiormq reports a failed heartbeat to waiting callers as CancelledError, though nothing cancelled them: passed on, it
    would end a task, or a whole TaskGroup, silently. And where an answer and a cancellation come in the same turn of
    the event loop, `asyncio.wait_for` below aiormq keeps the answer and forgets the cancellation.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling() > before:
            raise
        raise LinkLost(describe(error)) from error
    except TimeoutError as error:
        raise LinkLost("the broker did not answer in time") from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise LinkLost(describe(error)) from error
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


def describe(error: BaseException) -> str:
    """The broker's or the system's own text."""
    if isinstance(error, asyncio.CancelledError):
        return "the broker stopped answering (heartbeat)"
    words = " ".join(str(part) for part in error.args if part is not None and part != "")
    return words or type(error).__name__


class ChannelUser(Protocol):
    """Receives what arrives on a channel: frame by frame, in order, never concurrently."""

    def delivered(self, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes) -> None: ...

    def returned(self, frame: spec.Basic.Return, header: UnreadHeader) -> None: ...

    def confirmed(self, frame: spec.Basic.Ack | spec.Basic.Nack) -> None: ...


class _Incoming(asyncio.Queue[Any]):
    """Replaces a channel's queue of frames.

    Content goes straight to the user, the rest to aiormq.
    """

    def __init__(self, user: ChannelUser, closed: "asyncio.Future[str]") -> None:
        super().__init__()
        self._user = user
        self._closed = closed
        self._method: spec.Basic.Deliver | spec.Basic.Return | None = None
        self._header: UnreadHeader | None = None
        self._body: list[bytes] = []
        self._missing = 0

    async def put(self, item: tuple[int, object]) -> None:
        frame = item[1]
        if self.take(frame):
            return
        if isinstance(frame, spec.Channel.Close) and not self._closed.done():
            # At once: a frame of ours behind aiormq's Close-Ok would end the whole connection.
            self._closed.set_result(str(frame.reply_text))
        await super().put(item)

    def take(self, frame: object) -> bool:
        """Pass content or a confirm to the user; return whether it was one."""
        if isinstance(frame, (spec.Basic.Deliver, spec.Basic.Return)):
            self._method = frame
        elif isinstance(frame, UnreadHeader):
            self._header, self._missing, self._body = frame, frame.body_size, []
            if not self._missing:
                self._complete()
        elif isinstance(frame, ContentBody):
            self._body.append(frame.value)
            self._missing -= len(frame.value)
            if self._missing <= 0:
                self._complete()
        elif isinstance(frame, (spec.Basic.Ack, spec.Basic.Nack)):
            self._user.confirmed(frame)
        else:
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


class WireChannel(Channel):
    """A channel that passes content to `user` and writes many frames at once."""

    def __init__(self, wire: "Wire", number: int, user: ChannelUser, *, publisher_confirms: bool) -> None:
        super().__init__(wire, number, publisher_confirms=publisher_confirms)
        self.ended: asyncio.Future[str] = self.loop.create_future()
        """Done, with the broker's reason, as soon as nothing more may be written."""
        self.frames = self.incoming = _Incoming(user, self.ended)
        self.closing.add_done_callback(self._end)

    async def write(self, payload: bytes) -> None:
        """Write frames; return when the operating system has taken them.

        LinkLost when it no longer can.
        """
        if self.ended.done():
            raise LinkLost(self.ended.result())
        taken = self.loop.create_future()
        await self.connection.write_queue.put(
            ChannelFrame(payload=payload, should_close=False, drain_future=taken)
        )
        await taken

    def _end(self, closing: "asyncio.Future[None]") -> None:
        if not self.ended.done():
            self.ended.set_result(_why(closing))


class _RememberingTransport(TransportFactory):
    """Opens the socket as aiormq does, and keeps it for a close that cannot hang."""

    def __init__(self, scheme: str) -> None:
        self._factory = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self._writer: StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[StreamReader, StreamWriter]:
        reader, writer = await self._factory.create(url, **options)
        self._writer = writer
        if writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
            # TCP lets a socket reach itself on a port of the ephemeral range that has no listener any more.
            self.abort()
            raise ConnectionRefusedError("nobody listens there (the socket had connected to itself)")
        return reader, writer

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class _RefusalReporter:
    """Reports why the broker refuses the connection; aiormq would only report an unexpected frame."""

    def __init__(self, receiver: FrameReceiver) -> None:
        self._receiver = receiver

    async def get_frame(self) -> ReceivedFrame:
        received = await self._receiver.get_frame()
        if isinstance(received[2], spec.Connection.Close):
            raise ConnectionClosed(received[2].reply_code, received[2].reply_text)
        return received


class Wire(Connection):
    """One connection; opened by `open_wire`, closed by `close_wire`."""

    def __init__(self, url: str, name: str) -> None:
        address = URL(url)
        if "heartbeat" not in address.query:
            address = address.extend_query(heartbeat=HEARTBEAT_SECONDS)
        self._transport = _RememberingTransport(address.scheme)
        super().__init__(
            address, transport_factory=self._transport, client_properties={"connection_name": name}
        )
        self.blocked: str | None = None
        """Why the broker takes no publishes at the moment."""
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self._numbers = itertools.count(1)

    @property
    def header_bytes(self) -> int:
        """The largest content header the broker takes: a frame minus its eight bytes."""
        return max(self.connection_tune.frame_max, LEAST_FRAME_BYTES) - 8

    async def open_channel(self, user: ChannelUser, *, publisher_confirms: bool = False) -> WireChannel:
        """A new channel; LinkLost when the connection is gone or does not answer."""
        with link_errors():
            number = next(self._numbers)
            channel = WireChannel(self, number, user, publisher_confirms=publisher_confirms)
            self.channels[number] = channel
            async with asyncio.timeout(RPC_SECONDS):
                await channel.open()
            return channel

    async def ended(self) -> str:
        """Wait until the connection is gone; return the reason."""
        gone = self.closing
        await asyncio.wait([gone])
        return _why(gone)

    async def close_wire(self) -> None:
        """Close within a few seconds in any state; never raises."""
        closing = asyncio.ensure_future(self.close())
        try:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        finally:
            self.abort()
            closing.cancel()
            await asyncio.wait([closing], timeout=1.0)
            _look_at(closing)

    def abort(self) -> None:
        """Drop the socket, without a message to the broker."""
        self._transport.abort()

    @staticmethod
    async def _rpc(
        request: Frame,
        writer: StreamWriter,
        frame_receiver: FrameReceiver,
        wait_response: bool = True,  # noqa: FBT001, FBT002  aiormq's signature
    ) -> FrameTypes | None:
        outspoken = cast("FrameReceiver", _RefusalReporter(frame_receiver))  # asked for get_frame only
        return await Connection._rpc(request, writer, outspoken, wait_response)  # noqa: SLF001  see the page's top

    async def _Connection__reader(self, frame_receiver: FrameReceiver) -> None:  # noqa: N802  aiormq's private name
        frames = FrameStream(frame_receiver.reader, self._take)
        await super()._Connection__reader(frames)  # type: ignore[misc]  # private, and held by the test named above

    def _take(self, number: int, frame: object) -> bool:
        channel = self.channels.get(number)
        return isinstance(channel, WireChannel) and channel.incoming.take(frame)

    async def _Connection__handle_connection_blocked(self, frame: spec.Connection.Blocked) -> None:  # noqa: N802  aiormq's private name
        self.blocked = str(frame.reason)
        self.unblocked.clear()

    async def _Connection__handle_connection_unblocked(self, _: spec.Connection.Unblocked) -> None:  # noqa: N802  aiormq's private name
        self.blocked = None
        self.unblocked.set()


async def open_wire(url: str, name: str, *, timeout_seconds: float) -> Wire:
    """A new connection, which the broker shows as `name`.

    LinkLost when there is none within the time.
    """
    wire = Wire(url, name)
    connecting = asyncio.ensure_future(wire.connect())
    try:
        # Waited for beside, not inside: aiormq may hold on to a cancellation while it connects.
        await asyncio.wait([connecting], timeout=timeout_seconds)
        with link_errors():
            try:
                _result(connecting)
            except (StopAsyncIteration, EOFError) as error:
                # aiormq says only this when the other side hangs up before the first frame is read.
                raise LinkLost("the connection was closed before the broker said hello") from error
    except BaseException:
        connecting.cancel()
        wire.abort()
        await asyncio.wait([connecting], timeout=1.0)
        _look_at(connecting)
        raise
    return wire


def _why(closing: "asyncio.Future[None]") -> str:
    error = None if closing.cancelled() else closing.exception()
    return "the connection was closed" if error is None else describe(error)


def _result(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        raise TimeoutError
    task.result()


def _look_at(task: "asyncio.Future[Any]") -> None:
    """Mark the outcome as retrieved for asyncio."""
    if task.done() and not task.cancelled():
        task.exception()
