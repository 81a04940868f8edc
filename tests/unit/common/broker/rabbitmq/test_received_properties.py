"""Malformed properties are read as far as possible, and nothing raises."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands as spec

from solstice_common.broker.headers import MAX_DEPTH, MAX_FIELDS
from solstice_common.broker.rabbitmq.properties import fitting_headers
from solstice_common.broker.rabbitmq.received_properties import (
    publishable,
    read_header,
    read_headers,
    read_properties,
)
from tests.raw_amqp import CORRELATION_ID_FLAG, field, long, nested, properties, short

HEAD = struct.pack(">HHQ", 60, 0, 0)
GOOD = field(b"good", b"t", b"\x01")


@pytest.mark.parametrize(
    ("strange", "stored"),
    [
        (field(b"k", b"A", long(nested(1000))), True),
        (field(b"k", b"F", long(nested(1000, kind=b"F"))), True),
        (field(b"k", b"A", long(b"V" * (MAX_FIELDS + 1))), False),
        (field(b"k", b"T", b"\xff" * 8), True),
        (field(b"k", b"A", long(b"A" + b"\xff" * 4)), True),
        (field(b"k", b"Q", b""), False),
        (field(b"k", b"S", b"\xff" * 4), False),
    ],
    ids=["arrays", "tables", "too many", "year", "inner length", "unknown type", "length"],
)
def test_what_can_be_read_beside_a_strange_header_is_kept(strange: bytes, stored: bool) -> None:
    read = read_properties(HEAD + properties(strange + GOOD, correlation_id=b"c"))
    assert read.correlation_id == "c"
    assert (read.headers == {"good": True}) is stored
    assert read_properties(HEAD + properties(GOOD + strange)).headers == {"good": True}


def test_tables_up_to_the_depth_are_read() -> None:
    header = HEAD + properties(field(b"k", b"A", long(nested(MAX_DEPTH))))
    assert read_properties(header).headers
    assert not read_properties(HEAD + properties(field(b"k", b"A", long(nested(MAX_DEPTH + 1))))).headers


def test_a_text_that_is_not_utf8_is_missing_alone() -> None:
    read = read_properties(HEAD + properties(GOOD, correlation_id=b"\xff"))
    assert (read.headers, read.correlation_id) == ({"good": True}, None)
    named = read_properties(HEAD + properties(field(b"\xff", b"t", b"\x01") + GOOD)).headers
    assert named == {"\\xff": True, "good": True}


NAMES = st.sampled_from([b"a", b"good", b"\xff", b""])


@given(
    st.lists(
        st.builds(
            field,
            NAMES,
            st.sampled_from([b"t", b"S", b"Q", b"A", b"F", b"l"]),
            st.sampled_from(
                [b"\x01", long(b"text"), long(b"\xff"), long(nested(3)), long(nested(1000)), bytes(8)]
            ),
        ),
        max_size=6,
    ).map(b"".join)
    | st.binary(max_size=60)
)
@example(field(b"a", b"t", b"\x01") + field(b"a", b"S", long(b"text")))
def test_one_header_is_read_as_among_all(table: bytes) -> None:
    header = HEAD + properties(table)
    everything = read_headers(header)
    for name in ("a", "good", "\\xff", "", "x"):
        assert read_header(header, name) == everything.get(name)


@given(st.binary(max_size=300))
@example(b"\xff" * 40)
@example(struct.pack(">H", CORRELATION_ID_FLAG) + b"\xff")
def test_no_bytes_raise_and_what_was_read_can_be_published(data: bytes) -> None:
    for header in (HEAD + data, HEAD + properties(data, correlation_id=b"c"), data):
        read = read_properties(header)
        assert read_headers(header) == (read.headers or {})
        spec.Basic.Properties(headers=fitting_headers(read.headers or {}, 100_000)).marshal()


def test_ordinary_properties_are_read_as_they_were_written() -> None:
    sent = spec.Basic.Properties(
        content_type="a", headers={"x": [{"y": "z"}], "n": -3}, priority=4, correlation_id="c", app_id="b"
    )
    assert dict(read_properties(HEAD + sent.marshal())) == dict(sent)
    assert read_headers(HEAD + sent.marshal()) == sent.headers


def test_bytes_stay_bytes_and_what_amqp_cannot_carry_is_left_out() -> None:
    assert publishable([b"\xff"]) == [bytearray(b"\xff")]
    assert publishable(1e300) is None
    assert short(b"ab") == b"\x02ab"
