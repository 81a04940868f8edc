"""The parts of aiormq that we use, with a scripted peer, and the socket's buffering."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import create_autospec

import aiormq
import pamqp.frame
import pytest
from aiormq import TransportFactory
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.frame import FrameTypes
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat
from yarl import URL

from solstice_common.broker.rabbitmq.frames import FrameFilter, UnreadHeader
from solstice_common.broker.rabbitmq.link_errors import LinkLost, link_errors
from solstice_common.broker.rabbitmq.wire import ChannelUser, FilteredTransport, WireChannel


class Peer:
    """Both ends of an aiormq connection: the broker's frames, and every write of aiormq."""

    def __init__(self) -> None:
        self.to_aiormq = asyncio.StreamReader()
        self.writes: asyncio.Queue[bytes] = asyncio.Queue()
        self.connection = aiormq.Connection("amqp://guest:guest@broker/", transport_factory=_Given(self))

    def sends(self, *frames: FrameTypes, channel: int = 0) -> None:
        self.to_aiormq.feed_data(b"".join(pamqp.frame.marshal(frame, channel) for frame in frames))

    async def hears(self) -> list[tuple[int, str]]:
        """Read the next write: channels and names of its frames; fails on incomplete frames."""
        write, received = await self.writes.get(), list[tuple[int, str]]()
        while write:
            size, channel, frame = pamqp.frame.unmarshal(write)
            received.append((channel, frame.name))
            write = write[size:]
        return received


class _Given(TransportFactory):
    """A socket that is a Peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def create(self, url: URL, **_options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        writer = create_autospec(asyncio.StreamWriter, instance=True)
        writer.write.side_effect = self._peer.writes.put_nowait
        writer.is_closing.return_value = False
        return self._peer.to_aiormq, writer


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A peer of an aiormq that has just connected."""
    peer = Peer()
    capabilities: FieldTable = {"publisher_confirms": True}
    peer.sends(
        spec.Connection.Start(server_properties={"capabilities": capabilities}),
        spec.Connection.Tune(2047, 131072, 10),
        spec.Connection.OpenOk(),
    )
    await peer.connection.connect()
    assert (await peer.hears()) == [(0, "ProtocolHeader")]
    assert [(await peer.hears()) for _ in range(3)] == [
        [(0, "Connection.StartOk")],
        [(0, "Connection.TuneOk")],
        [(0, "Connection.Open")],
    ]
    yield peer
    peer.to_aiormq.feed_eof()
    await peer.connection.close()


class TestAiormq:
    """Properties of aiormq that we rely on beyond its public interface."""

    async def test_a_socket_of_ours_is_all_it_reads_and_writes(self, peer: Peer) -> None:
        opening = asyncio.create_task(peer.connection.channel(publisher_confirms=True))
        assert await peer.hears() == [(1, "Channel.Open")]
        peer.sends(spec.Channel.OpenOk(), channel=1)
        assert await peer.hears() == [(1, "Confirm.Select")]
        peer.sends(spec.Confirm.SelectOk(), channel=1)
        assert (await opening).number == 1

    async def test_every_write_is_whole_frames_so_that_ours_may_stand_between(self, peer: Peer) -> None:
        opening = asyncio.create_task(peer.connection.channel(publisher_confirms=False))
        await peer.hears()
        peer.sends(spec.Channel.OpenOk(), channel=1)
        channel = await opening
        arguments: dict[str, Any] = {"x": "y" * 100_000}
        declaring = asyncio.create_task(channel.queue_declare("q", arguments=arguments))
        assert await peer.hears() == [(1, "Queue.Declare")]
        peer.sends(spec.Queue.DeclareOk("q", 0, 0), channel=1)
        await declaring

    async def test_a_number_is_used_again_once_its_channel_is_closed(self, peer: Peer) -> None:
        for _ in range(3):
            opening = asyncio.create_task(peer.connection.channel(publisher_confirms=False))
            assert await peer.hears() == [(1, "Channel.Open")]
            peer.sends(spec.Channel.OpenOk(), channel=1)
            closing = asyncio.create_task((await opening).close())
            assert await peer.hears() == [(1, "Channel.Close")]
            peer.sends(spec.Channel.CloseOk(), channel=1)
            await closing

    async def test_a_channel_that_the_broker_closes_says_why(self, peer: Peer) -> None:
        opening = asyncio.create_task(peer.connection.channel(publisher_confirms=False))
        await peer.hears()
        peer.sends(spec.Channel.OpenOk(), channel=1)
        closing = (await opening).closing
        peer.sends(spec.Channel.Close(404, "NOT_FOUND - no queue", 60, 20), channel=1)
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="no queue"):
            await closing
        assert await peer.hears() == [(1, "Channel.CloseOk")]

    async def test_the_end_of_what_it_reads_is_the_end_of_the_connection(self, peer: Peer) -> None:
        closing = peer.connection.closing
        peer.to_aiormq.set_exception(ConnectionResetError("reset by the test"))
        with pytest.raises(aiormq.exceptions.AMQPConnectionError, match="reset by the test"):
            await closing


class RecordedCallbacks:
    def __init__(self) -> None:
        self.facts: list[object] = []

    def delivered(self, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes) -> None:
        self.facts.append(("delivered", frame.delivery_tag, header.read().message_id, body))

    def returned(self, frame: spec.Basic.Return, header: UnreadHeader) -> None:
        self.facts.append(("returned", frame.reply_text, header.read().message_id))

    def confirmed(self, frame: spec.Basic.Ack | spec.Basic.Nack) -> None:
        self.facts.append((frame.name, frame.delivery_tag))


def header(size: int, message_id: str) -> UnreadHeader:
    properties = spec.Basic.Properties(message_id=message_id)
    return UnreadHeader(ContentHeader(body_size=size, properties=properties).marshal())


async def opened(peer: Peer, user: ChannelUser, error: Exception | None = None) -> WireChannel:
    opening = asyncio.create_task(peer.connection.channel(publisher_confirms=False))
    await peer.hears()
    peer.sends(spec.Channel.OpenOk(), channel=1)
    writer = create_autospec(asyncio.StreamWriter, instance=True)
    writer.write.side_effect = error
    return WireChannel(await opening, writer, user, 4088)


async def test_content_reaches_the_user_whole_and_the_rest_is_left_to_aiormq(peer: Peer) -> None:
    received = RecordedCallbacks()
    channel = await opened(peer, received)
    incoming: list[object] = [
        spec.Basic.ConsumeOk("c"),
        spec.Basic.Deliver("c", 1),
        header(5, "a"),
        ContentBody(b"abc"),
        ContentBody(b"de"),
        spec.Basic.Deliver("c", 2),
        header(0, "b"),
        spec.Basic.Return(312, "NO_ROUTE"),
        header(1, "r"),
        ContentBody(b"z"),
        spec.Basic.Ack(7),
        spec.Basic.Nack(8),
        spec.Channel.Close(404, "NOT_FOUND - no exchange 'x'", 60, 40),
    ]
    left = [frame for frame in incoming if not channel.take(frame)]
    assert received.facts == [
        ("delivered", 1, "a", b"abcde"),
        ("delivered", 2, "b", b""),
        ("returned", "NO_ROUTE", "r"),
        ("Basic.Ack", 7),
        ("Basic.Nack", 8),
    ]
    assert left == [incoming[0], incoming[-1]]


async def test_nothing_is_written_to_a_channel_that_the_broker_has_closed(peer: Peer) -> None:
    channel = await opened(peer, RecordedCallbacks())
    await channel.write(b"before")
    channel.take(spec.Channel.Close(404, "NOT_FOUND - no exchange 'x'", 60, 40))
    with pytest.raises(LinkLost, match="no exchange 'x'"):
        await channel.write(b"after")
    assert channel.ended.result() == "NOT_FOUND - no exchange 'x'"


@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), RuntimeError("Cannot call write() after write_eof()")]
)
async def test_a_socket_that_takes_nothing_more_is_a_lost_link(peer: Peer, error: Exception) -> None:
    channel = await opened(peer, RecordedCallbacks(), error)
    with pytest.raises(LinkLost, match=re.escape(str(error))):
        await channel.write(b"too late")


class TestLinkErrors:
    @pytest.mark.parametrize(
        "error",
        [
            asyncio.CancelledError(),
            TimeoutError(),
            ConnectionResetError("reset"),
            RuntimeError("<Connection> closed"),
            aiormq.exceptions.ChannelInvalidStateError("closed"),
            Exception(),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_any_error_of_aiormq_is_a_lost_link(self, error: BaseException) -> None:
        with pytest.raises(LinkLost), link_errors():
            raise error

    async def test_an_error_of_ours_stays_one(self) -> None:
        with pytest.raises(KeyError), link_errors():
            raise KeyError("a bug")

    async def test_a_call_that_waits_at_an_end_behind_a_frame_is_a_lost_link(self, peer: Peer) -> None:
        """aiormq ends it by a bare Exception, since its reader met no error."""
        channel = await opened(peer, RecordedCallbacks())
        leaving = asyncio.create_task(channel.calls.basic_cancel("c"))
        assert await peer.hears() == [(1, "Basic.Cancel")]
        peer.sends(Heartbeat())
        peer.to_aiormq.feed_eof()
        with pytest.raises(LinkLost, match="the connection was closed"), link_errors():
            await leaving
        assert await channel.ended == "the connection was closed"

    async def test_a_cancellation_of_ours_stays_one(self) -> None:
        async def work() -> None:
            with link_errors():
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_cancellation_that_came_together_with_the_answer_is_not_forgotten(self) -> None:
        async def work() -> None:
            with link_errors():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    return  # as asyncio.wait_for does in Python 3.11 when the answer is there

        async def sequence() -> str:
            await work()
            return "went on"

        task = asyncio.create_task(sequence())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_socket_that_reached_itself_is_refused() -> None:
    """Linux may connect a socket to its own port, which a reconnect can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = FilteredTransport("amqp", lambda reader: FrameFilter(reader, lambda _channel, _frame: False))
    with pytest.raises(ConnectionRefusedError, match="connected to itself"):
        await transport.create(URL(f"amqp://127.0.0.1:{port}"), local_addr=("127.0.0.1", port))


async def test_a_tls_connection_that_has_ended_can_be_dropped_on_every_python() -> None:
    """Before Python 3.11.3 its transport has no protocol any more, and cannot be aborted."""
    transport = create_autospec(asyncio.Transport, instance=True)
    transport.abort.side_effect = AttributeError("'NoneType' object has no attribute '_abort'")
    opened = FilteredTransport("amqps", lambda _: create_autospec(FrameFilter, instance=True))
    opened.writer = create_autospec(asyncio.StreamWriter, instance=True, transport=transport)
    opened.abort()
    transport.abort.assert_called_once_with()
