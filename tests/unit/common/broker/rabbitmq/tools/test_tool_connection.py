"""Frames that aio-pika reads for a command are readable for any message."""

import asyncio

import pamqp.frame
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from yarl import URL

from solstice_common.broker.rabbitmq.frames import BODY, HEADER, METHOD, content_header, frame
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection
from tests.raw_amqp import field, long, nested, properties, short

DEEP = properties(field(b"k", b"A", long(nested(1000))), correlation_id=b"c")
PROPERTIES = spec.Basic.Properties(
    headers={"x-death": [{"count": 2}], "x": "y", "z": bytearray(b"\xff"), "half": 0.5},
    delivery_mode=2,
    correlation_id="c",
    message_id="m",
)
names = st.binary(max_size=255)


async def passed_on(data: bytes) -> list[object]:
    """The frames that aio-pika gets for these bytes, as pamqp reads them."""
    connection = ToolConnection(URL("amqp://host"))
    reader = asyncio.StreamReader()
    frames = connection._readable(reader)
    reader.feed_data(data)
    reader.feed_eof()
    await frames.run()
    left, read = await frames.rest.read(), list[object]()
    while left:
        length, _, one = pamqp.frame.unmarshal(left)
        read.append(one)
        left = left[length:]
    return read


def message(header: bytes, *, exchange: bytes = b"", routing_key: bytes = b"") -> bytes:
    delivery = (
        b"\0<\0<" + short(b"tag") + b"\0" * 7 + b"\x07" + b"\x01" + short(exchange) + short(routing_key)
    )
    return (
        frame(METHOD, 1, delivery)
        + frame(HEADER, 1, content_header(header, 4))
        + frame(BODY, 1, b"body")
        + pamqp.frame.marshal(spec.Basic.CancelOk("tag"), 1)
    )


@given(st.binary(max_size=80).filter(lambda data: len(data) > 1), names, names)
@example(DEEP, b"\xff", b"\xff" * 255)
@example(properties(b"", correlation_id=b"\xff"), b"", b"")
def test_every_message_can_be_read(header: bytes, exchange: bytes, routing_key: bytes) -> None:
    deliver, content, body, cancelled = asyncio.run(
        passed_on(message(header, exchange=exchange, routing_key=routing_key))
    )
    assert isinstance(deliver, spec.Basic.Deliver)
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == ("tag", 7, True)
    assert isinstance(content, ContentHeader)
    assert content.body_size == 4
    assert isinstance(body, ContentBody)
    assert body.value == b"body"
    assert isinstance(cancelled, spec.Basic.CancelOk)


async def test_what_can_be_read_is_passed_on_as_it_was() -> None:
    _, content, *_ = await passed_on(message(PROPERTIES.marshal()))
    assert isinstance(content, ContentHeader)
    assert dict(content.properties) == dict(PROPERTIES)
    _, content, *_ = await passed_on(message(DEEP))
    assert isinstance(content, ContentHeader)
    assert (content.properties.headers, content.properties.correlation_id) == ({}, "c")


async def test_a_connection_is_silent_until_a_part_of_a_message_arrives() -> None:
    connection = ToolConnection(URL("amqp://host"))
    assert connection.silent_seconds == float("inf")
    frames = connection._readable(asyncio.StreamReader())
    assert connection.silent_seconds < 60
    before = connection.silent_seconds
    await asyncio.sleep(0.05)
    frames._divide(pamqp.frame.marshal(spec.Basic.CancelOk("tag"), 1))
    assert connection.silent_seconds > before
    frames._divide(frame(BODY, 1, b"body"))
    assert connection.silent_seconds < 0.05
