"""What we use of aiormq beyond its public interface; when one of these fails, read its new version before anything."""

import asyncio
import inspect
import socket
from importlib.metadata import version

import aiormq
import pytest
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection, TransportFactory
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from yarl import URL

from solstice_common.broker.rabbitmq.frames import UnreadHeader
from solstice_common.broker.rabbitmq.wire import LinkLost, Wire, _Incoming, _RememberingTransport, link_errors


class TestAiormq:
    def test_the_version_is_the_one_these_facts_were_read_in(self) -> None:
        assert version("aiormq").startswith("7.2.")

    @pytest.mark.parametrize(
        "name", ["_Connection__handle_connection_blocked", "_Connection__handle_connection_unblocked"]
    )
    def test_a_blocked_connection_is_told_to_a_method_we_replace(self, name: str) -> None:
        assert list(inspect.signature(getattr(Connection, name)).parameters) in (
            ["self", "frame"],
            ["self", "_"],
        )
        assert getattr(Wire, name) is not getattr(Connection, name)
        assert f"self.{name.removeprefix('_Connection')}(" in inspect.getsource(Connection)

    def test_frames_are_read_by_one_loop_that_iterates_over_its_receiver(self) -> None:
        loop = inspect.getsource(Connection._Connection__reader)  # type: ignore[attr-defined]  # private
        assert loop.count("frame_receiver") == 2
        assert "async for weight, channel, frame in frame_receiver:" in loop
        assert "self.__reader(frame_receiver)" in inspect.getsource(Connection)
        assert Wire._Connection__reader is not Connection._Connection__reader  # type: ignore[attr-defined]  # private

    def test_every_frame_of_a_channel_is_put_into_its_frames(self) -> None:
        assert "await ch.frames.put((weight, frame))" in inspect.getsource(Connection)
        assert "await self.frames.get()" in inspect.getsource(Channel)

    def test_what_is_written_goes_through_the_queue_of_the_connection(self) -> None:
        frame = ChannelFrame(payload=b"x", should_close=False, drain_future=None)
        assert not frame.should_drain
        assert "writer.write(channel_frame.payload)" in inspect.getsource(Connection)

    def test_a_transport_of_ours_is_asked_for_the_socket(self) -> None:
        assert list(inspect.signature(TransportFactory.create).parameters) == ["self", "url", "kwargs"]

    def test_the_handshake_asks_the_receiver_for_frames_and_nothing_else(self) -> None:
        handshake = inspect.getsource(Connection._rpc)
        assert list(inspect.signature(Connection._rpc).parameters) == [
            "request",
            "writer",
            "frame_receiver",
            "wait_response",
        ]
        assert handshake.count("frame_receiver.") == handshake.count("frame_receiver.get_frame()") == 1

    def test_a_channel_registers_itself_nowhere_but_in_channels(self) -> None:
        assert "self.channels[channel_number] = channel" in inspect.getsource(Connection.channel)


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


async def test_content_reaches_the_user_whole_and_the_rest_reaches_aiormq() -> None:
    heard, closed = RecordedCallbacks(), asyncio.get_running_loop().create_future()
    frames = _Incoming(heard, closed)
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
    for frame in incoming:
        await frames.put((0, frame))
    assert heard.facts == [
        ("delivered", 1, "a", b"abcde"),
        ("delivered", 2, "b", b""),
        ("returned", "NO_ROUTE", "r"),
        ("Basic.Ack", 7),
        ("Basic.Nack", 8),
    ]
    assert closed.result() == "NOT_FOUND - no exchange 'x'"
    assert [frames.get_nowait()[1] for _ in range(frames.qsize())] == [incoming[0], incoming[-1]]


class TestLinkErrors:
    @pytest.mark.parametrize(
        "error",
        [
            asyncio.CancelledError(),
            TimeoutError(),
            ConnectionResetError("reset"),
            RuntimeError("<Connection> closed"),
            aiormq.exceptions.ChannelInvalidStateError("closed"),
        ],
        ids=lambda error: type(error).__name__,
    )
    async def test_whatever_aiormq_raises_is_a_lost_link(self, error: BaseException) -> None:
        with pytest.raises(LinkLost), link_errors():
            raise error

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
    """Linux connects a socket to its own port when it was bound to that before: what an unlucky reconnect draws."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = _RememberingTransport("amqp")
    with pytest.raises(ConnectionRefusedError, match="connected to itself"):
        await transport.create(URL(f"amqp://127.0.0.1:{port}"), local_addr=("127.0.0.1", port))
