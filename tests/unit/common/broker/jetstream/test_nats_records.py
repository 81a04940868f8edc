"""A message's properties travel in one ASCII header."""

import json
from email.parser import BytesParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from solstice_common.broker.headers import MAX_DEPTH
from solstice_common.broker.jetstream.nats_records import (
    HEADER_BYTES,
    dead_letter_record,
    header_bytes,
    headers_of,
    is_readable,
    meta_of_head,
    read_meta,
    record_of,
    text_of,
    without_known,
)
from solstice_common.broker.protocol import Message


def test_header_is_one_line_of_ascii_and_keeps_types() -> None:
    message = Message(
        exchange="e",
        routing_key="k",
        body=b"\0",
        type="t",
        headers={"text": " Grüße,\r\n世界 ", "number": 2**62, "truth": True, "x-death": "forged"},
    )
    value = record_of(message).header("id-1")
    assert value.isascii()
    assert value.isprintable()
    meta = read_meta({"Solstice-Meta": value})
    assert meta["message_id"] == "id-1"
    assert headers_of(meta) == {"text": " Grüße,\r\n世界 ", "number": 2**62, "truth": True}
    assert {"correlation_id", "priority"}.isdisjoint(meta)


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.text(st.characters(), max_size=20) | st.integers() | st.booleans(),
        max_size=5,
    )
)
def test_header_says_what_json_says_of_any_headers(headers: dict[str, str | int | bool]) -> None:
    value = record_of(Message(exchange="e", routing_key="k", body=b"", type="t", headers=headers)).header("i")
    assert value.isascii()
    sent = {name: each for name, each in headers.items() if not name.startswith("x-death")}
    assert json.loads(value).get("headers", {}) == sent


def test_header_leaves_out_what_the_reader_knows() -> None:
    message = Message(exchange="e", routing_key="t", body=b"", type="t", app_id="a")
    header = record_of(message).header(None)
    assert {"message_id", "content_type", "routing_key"}.isdisjoint(json.loads(header))
    meta = read_meta({"Solstice-Meta": header, "Nats-Msg-Id": "id-7"})
    assert (meta["message_id"], meta["content_type"], meta["routing_key"]) == (
        "id-7",
        "application/json",
        "t",
    )
    other = Message(exchange="e", routing_key="k", body=b"", type="t", content_type="text/plain")
    meta = json.loads(record_of(other).header(None))
    assert (meta["content_type"], meta["routing_key"]) == ("text/plain", "k")


PROPERTIES = st.sampled_from(["t", "application/json", "text/plain", ""])


@given(
    st.fixed_dictionaries(
        {"exchange": PROPERTIES},
        optional=dict.fromkeys(("type", "content_type", "routing_key", "app_id"), PROPERTIES),
    )
)
def test_properties_without_those_known_are_read_as_they_were(meta: dict[str, str]) -> None:
    written = json.dumps(without_known(meta))
    read = read_meta({"Solstice-Meta": written})
    assert {name: value for name, value in read.items() if value is not None} == meta


def test_message_id_of_the_properties_goes_before_the_servers() -> None:
    meta = read_meta({"Solstice-Meta": '{"message_id":"fresh"}', "Nats-Msg-Id": "of the first attempt"})
    assert meta["message_id"] == "fresh"
    assert read_meta({"Nats-Msg-Id": "foreign"}) == {"message_id": "foreign"}
    assert read_meta({"Solstice-Meta": "[", "Nats-Msg-Id": "foreign"}) == {"message_id": "foreign"}


@pytest.mark.parametrize("value", [b"bytes", object()])
def test_header_that_json_cannot_say_is_an_error(value: object) -> None:
    message = Message(exchange="e", routing_key="k", body=b"", type="t", headers={"h": value})  # type: ignore[dict-item]  # a wrong type is the subject
    with pytest.raises(TypeError):
        record_of(message).header("i")


def test_record_has_its_destination_and_is_no_repeat_by_default() -> None:
    message = Message(exchange="e", routing_key="k", body=b"b", type="t", priority=7)
    record = record_of(message)
    assert (record.exchange, record.routing_key, record.body, record.is_repeat) == ("e", "k", b"b", False)
    assert record.repeat_key is None
    assert record.meta["priority"] == 7
    dead = dead_letter_record("dlx", "dead", b"b", {}, {})
    assert (dead.exchange, dead.routing_key, dead.is_repeat) == ("dlx", "dead", False)
    assert dead.repeat_key is None


def test_headers_on_the_wire_are_counted_whole() -> None:
    assert header_bytes("value") == len(b"NATS/1.0\r\nSolstice-Meta: value\r\n\r\n")


def test_dead_letter_that_just_fits_keeps_all_headers() -> None:
    def remaining(filling: int) -> set[str]:
        headers = {"foreign": "x" * filling, "x-solstice-reason": "bad"}
        value = dead_letter_record("dlx", "key", b"", {}, headers).header("0" * 64)
        assert header_bytes(value) <= HEADER_BYTES
        return set(json.loads(value)["headers"])

    empty = dead_letter_record("dlx", "key", b"", {}, {"foreign": "", "x-solstice-reason": "bad"})
    room = HEADER_BYTES - header_bytes(empty.header("0" * 64))
    assert remaining(room) == {"foreign", "x-solstice-reason"}
    assert remaining(room + 1) == {"x-solstice-reason"}


def test_dead_letter_loses_no_header_beyond_those_that_make_it_fit() -> None:
    def remaining(filling: int) -> set[str]:
        headers = {"small": "x" * 30_000, "filling": "x" * filling, "large": "x" * 60_000}
        value = dead_letter_record("dlx", "key", b"", {}, headers).header("0" * 64)
        assert header_bytes(value) <= HEADER_BYTES
        return set(json.loads(value)["headers"])

    without = dead_letter_record("dlx", "key", b"", {}, {"small": "x" * 30_000, "filling": ""})
    room = HEADER_BYTES - header_bytes(without.header("0" * 64))
    assert remaining(room) == {"small", "filling"}
    assert remaining(room + 1) == {"small"}


def test_of_our_own_headers_a_sixteenth_of_the_room_is_kept_each() -> None:
    at_most = HEADER_BYTES // 16 - len('{"x-solstice-a": ""}')
    headers: dict[str, object] = {
        "x-solstice-a": "a" * at_most,
        "x-solstice-b": "b" * (at_most + 1),
        "x-solstice-c": "c" * 62_000,
    }
    record = dead_letter_record("dlx", "key", b"", {}, headers)
    assert set(json.loads(record.header("new"))["headers"]) == {"x-solstice-a"}


@pytest.mark.parametrize("value", ["", "{", "[]", "7", '"text"'])
def test_header_that_is_no_object_says_nothing(value: str) -> None:
    assert read_meta({"Solstice-Meta": value}) == {}
    assert read_meta(None) == {}


def test_property_of_another_type_is_absent() -> None:
    assert text_of({"type": 7}, "type") is None
    assert headers_of({"headers": "none"}) == {}


def test_dead_letter_fits_with_any_headers() -> None:
    headers: dict[str, object] = {
        "large": "x" * 60_000,
        "small": "kept",
        "x-solstice-reason": "bad",
        "x-solstice-detail": "世" * 2048,
    }
    record = dead_letter_record("dlx", "key", b"body", {"type": "t", "message_id": "old"}, headers)
    value = record.header("new")
    assert header_bytes(value) <= HEADER_BYTES
    meta = json.loads(value)
    assert (meta["exchange"], meta["type"], meta["message_id"]) == ("dlx", "t", "new")
    assert meta["headers"] == {name: headers[name] for name in headers if name != "large"}


def test_dead_letter_whose_own_words_are_too_long_is_shortened() -> None:
    headers: dict[str, object] = {
        "x-solstice-reason": "bad",
        "x-solstice-detail": "世" * 20_000,
        "x-solstice-note": "n" * 64_000,
    }
    value = dead_letter_record("dlx", "key", b"", {}, headers).header("new")
    assert header_bytes(value) <= HEADER_BYTES
    assert json.loads(value)["headers"]["x-solstice-reason"] == "bad"


@pytest.mark.parametrize(
    "meta",
    [
        {"type": "x" * 65_000},
        {"routing_key": "x" * 65_000, "app_id": "a"},
        {f"k{number}": number for number in range(4_000)},
    ],
    ids=["type", "routing key", "many"],
)
def test_dead_letter_fits_with_any_properties(meta: dict[str, object]) -> None:
    headers: dict[str, object] = {
        "small": "kept",
        "x-solstice-reason": "bad",
        "x-solstice-detail": "d" * 2048,
    }
    routing_key = str(meta.get("routing_key", "key"))
    record = dead_letter_record("dlx", routing_key, b"", meta, headers)
    value = record.header("0" * 64)
    assert header_bytes(value) <= HEADER_BYTES
    assert json.loads(value)["headers"].items() >= {"x-solstice-reason": "bad"}.items()
    assert json.loads(value)["exchange"] == "dlx"
    assert record.routing_key == routing_key


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 900, 30_000])
def test_what_is_nested_too_deep_is_absent_and_all_else_is_read(depth: int) -> None:
    value = f'{{"type": "t", "k": {nested(depth)}, "headers": {{"l": {nested(depth)}, "m": 1}}}}'
    meta = read_meta({"Solstice-Meta": value})
    known = {"content_type": "application/json", "routing_key": "t"}
    # Deeper than Python reads JSON, nothing is left of it.
    assert meta == ({} if depth == 30_000 else {**known, "type": "t", "headers": {"m": 1}})


def test_header_that_is_not_utf_8_says_nothing() -> None:
    read = BytesParser().parsebytes(b"Solstice-Meta: \xff\xfe\r\n\r\n")
    assert not isinstance(read["Solstice-Meta"], str)
    assert read_meta(dict(read.items())) == {}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"", True),
        (b"NATS/1.0\r\n\r\n", True),
        (b"NATS/1.0\r\nSolstice-Meta: {}\r\n\r\n", True),
        (b"NATS/1.0\r\nA: b\r\n c\r\n\r\n", True),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", True),
        (b"NATS/1.0 404 No Messages\r\n\r\n", True),
        (b"NATS/1.0 404 \xff\r\n\r\n", False),
        (b"NATS/1.0", False),
        (b"xyz\r\n\r\n", False),
    ],
)
def test_a_head_is_readable_or_not(head: bytes, expected: bool) -> None:
    assert is_readable(head) is expected


def as_nats_py_reads_it(head: bytes) -> dict[str, str] | None:
    """The headers of a head; ValueError or IndexError where nats-py cannot read it."""
    with pytest.raises(StopIteration) as done:
        Client()._process_headers(head).send(None)
    headers: dict[str, str] | None = done.value.value
    return headers


PIECES = [
    *(
        b"\r\n",
        b"\n",
        b" ",
        b"\t",
        b":",
        b"=?utf-8?b?////?=",
        b"Solstice-Meta",
        b"Solstice-Meta: {}",
        b"Nats-Msg-Id: id-1",
        b"Nats-Msg-Id",
        b"404 x",
    ),
    *(b'{"type":"t"}', b'{"headers":{"k":"\xc3\xbc"}}', b'{"headers":{"k":"\xff"}}', b"\xff", b"Name"),
]


@example([b" ", b"\n", b"Nats-Msg-Id: id-1"])
@example([b"\r\n", b"Nats-Msg-Id"])
@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_properties_in_the_bytes_of_a_head_are_those_that_nats_py_reads(pieces: list[bytes]) -> None:
    """Else the id of a dead letter would depend on how it is read."""
    head = b"".join([b"NATS/1.0", *pieces, b"\r\n\r\n"])
    try:
        headers = as_nats_py_reads_it(head)
    except (ValueError, IndexError):
        return
    assert meta_of_head(head) == read_meta(headers)
