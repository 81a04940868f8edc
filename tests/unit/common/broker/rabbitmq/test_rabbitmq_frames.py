"""Our frame reader agrees with pamqp's for any cuts of the stream."""

import asyncio
import itertools
from datetime import UTC, datetime

import pamqp.frame
import pytest
from aiormq.exceptions import InvalidFrameError
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from solstice_common.broker.rabbitmq.frames import FrameFilter, FrameSplitter, Take, UnreadHeader

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


def reported(channel: int, frame: FrameTypes | UnreadHeader) -> tuple[int, object]:
    if isinstance(frame, UnreadHeader):
        return channel, ("header", frame.body_size, dict(frame.read()))
    if isinstance(frame, ContentHeader):
        return channel, ("header", frame.body_size, dict(frame.properties))
    if isinstance(frame, ContentBody):
        return channel, frame.value
    return channel, (frame.name, dict(frame))  # type: ignore[arg-type]  # pamqp's methods are iterable


@given(sent=frames, cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_every_cut_of_the_stream_gives_the_frames_that_pamqp_reads(
    sent: list[tuple[int, pamqp.frame.FrameTypes]], cuts: list[int]
) -> None:
    marshalled = [pamqp.frame.marshal(frame, channel) for channel, frame in sent]
    stream = b"".join(marshalled)
    cut, edges = FrameSplitter(), sorted({0, len(stream), *(at for at in cuts if at < len(stream))})
    received = [frame for a, b in itertools.pairwise(edges) for frame in cut(stream[a:b])]
    assert [reported(*each[:2]) for each in received] == [
        reported(*pamqp.frame.unmarshal(each)[1:]) for each in marshalled
    ]
    assert all(raw in (b"", own) for (_, _, raw), own in zip(received, marshalled, strict=True))


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
    ((_, frame, _),) = FrameSplitter()(b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce")
    assert isinstance(frame, spec.Basic.Deliver)
    assert (frame.exchange, frame.routing_key, frame.delivery_tag, frame.redelivered) == (
        exchange.decode(),
        "k",
        7,
        True,
    )


def test_a_heartbeat_is_a_frame_of_its_own() -> None:
    ((channel, frame, raw),) = FrameSplitter()(Heartbeat().marshal())
    assert (channel, type(frame), raw) == (0, Heartbeat, Heartbeat().marshal())


def test_the_empty_body_of_a_frame_is_no_end_of_the_stream() -> None:
    ((channel, frame, _),) = FrameSplitter()(b"\x03\x00\x01\x00\x00\x00\x00\xce")
    assert reported(channel, frame) == (1, b"")


@pytest.mark.parametrize(
    "stream",
    [
        b"\x03\x00\x01\x00\x00\x00\x01xx",
        b"\x09\x00\x01\x00\x00\x00\x01x\xce",
        b"\x01\x00\x01\x00\x00\x00\x04\xff\xff\xff\xff\xce",
    ],
    ids=["wrong end", "unknown kind", "unknown method"],
)
def test_bytes_that_are_no_frame_are_reported(stream: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        FrameSplitter()(stream)


def test_unreadable_properties_cost_only_themselves() -> None:
    whole = ContentHeader(body_size=7, properties=spec.Basic.Properties(correlation_id="abc")).marshal()
    header = UnreadHeader(whole.replace(b"abc", b"\xff\xfe\xfd"))
    assert header.body_size == 7
    assert header.read().correlation_id is None


def filtered(*parts: bytes, take: Take) -> FrameFilter:
    reader = asyncio.StreamReader()
    for part in parts:
        reader.feed_data(part)
    reader.feed_eof()
    return FrameFilter(reader, take)


def take_acks(_channel: int, frame: object) -> bool:
    return isinstance(frame, spec.Basic.Ack)


def marshalled(*sent: pamqp.frame.FrameTypes) -> bytes:
    return b"".join(pamqp.frame.marshal(frame, 7) for frame in sent)


async def test_what_is_taken_is_not_passed_on_and_the_end_is_shared() -> None:
    read_frames: list[tuple[int, object]] = []
    half = marshalled(spec.Channel.CloseOk())[:-3]
    stream = marshalled(spec.Basic.Ack(1), spec.Basic.ConsumeOk("tag"), spec.Basic.Ack(2)) + half

    def take(channel: int, frame: object) -> bool:
        read_frames.append((channel, frame))
        return take_acks(channel, frame)

    frames = filtered(stream, take=take)
    await frames.run()
    assert [getattr(frame, "delivery_tag", None) for _, frame in read_frames] == [1, None, 2]
    assert await frames.rest.read() == marshalled(spec.Basic.ConsumeOk("tag")) + half
    assert frames.rest.at_eof()


async def test_content_that_no_channel_takes_is_dropped() -> None:
    content: list[FrameTypes] = [
        deliver(1, redelivered=False, names=("c", "e", "k")),
        ContentHeader(body_size=1),
        ContentBody(b"x"),
    ]
    frames = filtered(marshalled(*content, spec.Channel.CloseOk()), take=lambda *_: False)
    await frames.run()
    assert await frames.rest.read() == marshalled(spec.Channel.CloseOk())


async def test_without_frames_a_heartbeat_keeps_the_link_alive() -> None:
    frames = filtered(marshalled(spec.Basic.Ack(1), spec.Basic.Ack(2)), take=take_acks)
    await frames.run()
    assert await frames.rest.read() == Heartbeat().marshal()


@pytest.mark.parametrize(
    ("stream", "take", "error"),
    [
        (b"\x03\x00\x01\x00\x00\x00\x01xx", take_acks, InvalidFrameError),
        (marshalled(spec.Basic.Ack(1)), lambda *_: 1 / 0, ZeroDivisionError),
    ],
    ids=["no frame", "a bug"],
)
async def test_an_error_in_reading_is_raised_to_the_reader_of_the_rest(
    stream: bytes, take: Take, error: type[Exception]
) -> None:
    frames = filtered(stream, take=take)
    await frames.run()
    with pytest.raises(error):
        await frames.rest.read()
