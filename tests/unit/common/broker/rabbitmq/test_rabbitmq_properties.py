"""An AMQP library reads back the properties that we write."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.header import ContentHeader

from solstice_common.broker.headers import without_broker_headers
from solstice_common.broker.protocol import HeaderValue, Message
from solstice_common.broker.rabbitmq.frames import content_header
from solstice_common.broker.rabbitmq.properties import fitting_headers, of_message

NAMES = st.text(min_size=1, max_size=20)
VALUES = st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1))
SHORT = st.text(max_size=60)


@given(
    headers=st.dictionaries(NAMES, VALUES, max_size=5),
    correlation_id=st.none() | SHORT,
    priority=st.none() | st.integers(0, 255),
    type_=SHORT,
    message_id=SHORT,
    seconds=st.integers(0, 4_000_000_000),
    body_size=st.integers(0, 2**63),
)
def test_what_is_written_is_what_a_library_reads(
    headers: dict[str, HeaderValue],
    correlation_id: str | None,
    priority: int | None,
    type_: str,
    message_id: str,
    seconds: int,
    body_size: int,
) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    message = Message(
        exchange="x",
        routing_key="k",
        body=b"",
        type=type_,
        correlation_id=correlation_id,
        headers=headers,
        priority=priority,
        timestamp=moment,
    )
    read = ContentHeader()
    read.unmarshal(content_header(of_message(message)(message_id), body_size))
    given_ = read.properties
    assert read.body_size == body_size
    assert (given_.headers or {}) == without_broker_headers(headers)
    assert (given_.correlation_id, given_.priority, given_.message_type) == (correlation_id, priority, type_)
    assert (given_.message_id, given_.timestamp, given_.delivery_mode) == (message_id, moment, 2)
    assert (given_.content_type, given_.app_id) == ("application/json", "solstice-ci")
    assert (given_.reply_to, given_.expiration, given_.user_id) == (None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"correlation_id": "x" * 256}, id="long correlation id"),
        pytest.param({"type": "é" * 128}, id="type of more than 255 bytes"),
        pytest.param({"priority": 256}, id="priority beyond a byte"),
        pytest.param({"headers": {"x" * 256: 1}}, id="long name of a header"),
        pytest.param({"headers": {"x": "\ud800"}}, id="what is no text"),
    ],
)
def test_what_amqp_cannot_carry_is_a_value_error(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"exchange": "x", "routing_key": "k", "body": b"", "type": "t", **wrong}
    with pytest.raises(ValueError, match=r".+"):
        of_message(Message(**fields))("id")  # type: ignore[arg-type]  # that is the point


def test_a_dead_letter_says_why_before_it_keeps_anything_else() -> None:
    headers = {"huge": "h" * 5000, "small": "s", "x-solstice-reason": "r", "x-solstice-detail": "é" * 2048}
    chosen = fitting_headers(headers, 1000)
    assert chosen["x-solstice-reason"] == "r"
    assert chosen["x-solstice-detail"] == "é" * 256
    assert chosen["small"] == "s"
    assert "huge" not in chosen
