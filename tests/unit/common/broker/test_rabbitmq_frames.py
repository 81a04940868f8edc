"""Our reading of frames against pamqp's, wherever the stream is cut."""

import asyncio
import itertools
from datetime import UTC, datetime

import pamqp.frame
import pytest
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from solstice_common.broker.rabbitmq.frames import FrameSplitter, FrameStream, Received, UnreadHeader

PROPERTIES = spec.Basic.Properties(
    content_type="application/json",
    headers={"x-solstice-attempt": 2, "x": "y"},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    message_id="m",
    timestamp=datetime(2026, 1, 31, 12, tzinfo=UTC),
    message_type="jobrequest.v1",
    app_id="solstice-ci",
)


def deliver(tag: int, *, redelivered: bool, names: tuple[str, str, str]) -> spec.Basic.Deliver:
    frame = spec.Basic.Deliver(delivery_tag=tag, redelivered=redelivered)
    frame.consumer_tag, frame.exchange, frame.routing_key = names
    return frame


# What pamqp writes, to compare with; it refuses to write other names of exchanges, which RabbitMQ allows.
names = st.text("abcXYZ019-_.:", max_size=40)
frames = st.lists(
    st.tuples(
        st.integers(0, 65535),
        st.one_of(
            st.builds(
                deliver,
                st.integers(0, 2**63 - 1),
                redelivered=st.booleans(),
                names=st.tuples(names, names, names),
            ),
            st.builds(ContentHeader, st.just(0), st.integers(0, 2**63 - 1), st.just(PROPERTIES)),
            st.builds(ContentBody, st.binary(min_size=1, max_size=300)),
            st.builds(spec.Basic.Ack, st.integers(0, 2**63 - 1), st.booleans()),
            st.just(spec.Basic.ConsumeOk("tag")),
            st.just(spec.Channel.Close(404, "NOT_FOUND", 60, 40)),
        ),
    ),
    max_size=8,
)


def told(received: Received) -> tuple[int, int, object]:
    size, channel, frame = received
    if isinstance(frame, UnreadHeader):
        return size, channel, ("header", frame.body_size, dict(frame.read()))
    if isinstance(frame, ContentHeader):
        return size, channel, ("header", frame.body_size, dict(frame.properties))
    if isinstance(frame, ContentBody):
        return size, channel, frame.value
    return size, channel, (frame.name, dict(frame))  # type: ignore[arg-type]  # pamqp's methods are iterable


@given(sent=frames, cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_every_cut_of_the_stream_gives_the_frames_that_pamqp_reads(
    sent: list[tuple[int, pamqp.frame.FrameTypes]], cuts: list[int]
) -> None:
    marshalled = [pamqp.frame.marshal(frame, channel) for channel, frame in sent]
    stream = b"".join(marshalled)
    cut, edges = FrameSplitter(), sorted({0, len(stream), *(at for at in cuts if at < len(stream))})
    received = [frame for a, b in itertools.pairwise(edges) for frame in cut(stream[a:b])]
    assert [told(each) for each in received] == [told(pamqp.frame.unmarshal(each)) for each in marshalled]


def test_an_exchange_may_have_any_name() -> None:
    exchange = "köln\N{SNOWMAN}".encode()
    payload = (
        b"\x00\x3c\x00\x3c\x01t"
        + (7).to_bytes(8, "big")
        + b"\x01"
        + bytes([len(exchange)])
        + exchange
        + b"\x01k"
    )
    ((_, _, frame),) = FrameSplitter()(b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce")
    assert isinstance(frame, spec.Basic.Deliver)
    assert (frame.exchange, frame.routing_key, frame.delivery_tag, frame.redelivered) == (
        exchange.decode(),
        "k",
        7,
        True,
    )


def test_a_heartbeat_is_a_frame_of_its_own() -> None:
    ((size, channel, frame),) = FrameSplitter()(Heartbeat().marshal())
    assert (size, channel, type(frame)) == (8, 0, Heartbeat)


def test_the_empty_body_of_a_frame_is_no_end_of_the_stream() -> None:
    assert [told(each) for each in FrameSplitter()(b"\x03\x00\x01\x00\x00\x00\x00\xce")] == [(8, 1, b"")]


@pytest.mark.parametrize(
    "stream",
    [
        b"\x03\x00\x01\x00\x00\x00\x01xx",
        b"\x09\x00\x01\x00\x00\x00\x01x\xce",
        b"\x01\x00\x01\x00\x00\x00\x04\xff\xff\xff\xff\xce",
    ],
    ids=["wrong end", "unknown kind", "unknown method"],
)
def test_what_is_no_frame_is_said_to_be_none(stream: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        FrameSplitter()(stream)


def test_properties_that_nobody_can_read_cost_nothing_but_themselves() -> None:
    whole = ContentHeader(body_size=7, properties=spec.Basic.Properties(correlation_id="abc")).marshal()
    header = UnreadHeader(whole.replace(b"abc", b"\xff\xfe\xfd"))
    assert header.body_size == 7
    assert header.read().correlation_id is None


async def test_the_end_of_the_stream_is_the_end_of_the_connection() -> None:
    reader = asyncio.StreamReader()
    frames = FrameStream(reader, lambda _channel, _frame: False)
    reader.feed_data(pamqp.frame.marshal(spec.Basic.Ack(1), 1))
    reader.feed_eof()
    assert told(await anext(frames))[1] == 1
    with pytest.raises(AMQPConnectionError):
        await anext(frames)


async def test_what_is_taken_is_not_handed_on_but_for_the_last_of_a_piece() -> None:
    reader, taken = asyncio.StreamReader(), list[tuple[int, int | None]]()

    def take(channel: int, frame: object) -> bool:
        if isinstance(frame, spec.Basic.Ack):
            taken.append((channel, frame.delivery_tag))
        return isinstance(frame, spec.Basic.Ack)

    sent = [spec.Basic.Ack(1), spec.Basic.ConsumeOk("tag"), spec.Basic.Ack(2), spec.Basic.Ack(3)]
    reader.feed_data(b"".join(pamqp.frame.marshal(frame, 7) for frame in sent))
    frames = FrameStream(reader, take)
    handed_on = [(await anext(frames))[2] for _ in range(2)]
    assert taken == [(7, 1), (7, 2)]
    assert [type(frame) for frame in handed_on] == [spec.Basic.ConsumeOk, spec.Basic.Ack]
