"""Messages as entries of Redis streams, written and read again."""

import string
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.headers import IDEMPOTENCY_HEADER, MAX_DEPTH
from solstice_common.broker.protocol import (
    HELD_BODY_BYTES,
    Message,
    Published,
    PublishStatus,
)
from solstice_common.broker.redis_streams.stream_entries import (
    DELIVERED_BYTES,
    HEADERS_BYTES,
    MAX_BODY_BYTES,
    NewStreamEntry,
    StreamDelivery,
    dead_meta,
    entry_of,
)

HEADERS = st.dictionaries(
    st.text(string.ascii_lowercase + "-", min_size=1),
    st.text(st.characters(exclude_categories=["Cs"])) | st.booleans() | st.integers(-(2**63), 2**63 - 1),
)


def message(body: bytes = b"{}", **changes: object) -> Message:
    return Message(exchange="orders", routing_key="order.v1", body=body, type="order.v1", **changes)  # type: ignore[arg-type]  # fields of any type


def entry(given_message: Message) -> NewStreamEntry:
    made = entry_of(given_message, "m-1")
    assert isinstance(made, NewStreamEntry)
    return made


@given(st.binary(), HEADERS)
def test_what_is_written_is_read_again(body: bytes, headers: dict[str, str | int | bool]) -> None:
    headers = {f"x-solstice-{name}": value for name, value in headers.items()}
    made = entry(message(body, headers=headers, correlation_id="request-7"))
    read = StreamDelivery(b"1-0", [b"body", made.body, b"meta", made.meta])
    assert (read.body, dict(read.headers)) == (body, headers)
    assert (read.exchange, read.routing_key, read.type) == ("orders", "order.v1", "order.v1")
    assert (read.correlation_id, read.message_id, read.redelivered) == ("request-7", "m-1", False)


@given(st.dictionaries(st.sampled_from([b"body", b"meta", b"other"]), st.binary()))
def test_no_entry_of_a_stranger_is_too_odd_to_be_delivered(fields: dict[bytes, bytes]) -> None:
    read = StreamDelivery(b"5-1", [part for field in fields.items() for part in field], failed_deliveries=3)
    assert read.body == fields.get(b"body", b"")
    assert read.headers["x-delivery-count"] == 3
    meta = dead_meta(fields, routing_key="k", message_id="m-2", headers={"x-solstice-reason": "bad"})
    assert orjson.loads(meta)["headers"] == {"x-solstice-reason": "bad"}


def test_the_idempotency_key_stands_beside_the_entry() -> None:
    made = entry(message(headers={IDEMPOTENCY_HEADER: "push-1"}, repeat=True))
    assert (made.key, made.repeat) == ("push-1", True)
    assert entry(message()).key == ""


@pytest.mark.parametrize(
    ("refused", "detail"),
    [
        (message(bytes(MAX_BODY_BYTES + 1)), f"its body has {MAX_BODY_BYTES + 1} bytes"),
        (message(headers={"h": "x" * 200_000}), "its headers take 200"),
        (message(headers={"h": "\ud800"}), "Redis cannot carry it"),
        (message(headers={"h": 2**64}), "Redis cannot carry it"),
    ],
    ids=["body", "headers", "half a character", "too large a number"],
)
def test_what_no_queue_can_carry_is_rejected_with_the_reason(refused: Message, detail: str) -> None:
    outcome = entry_of(refused, "m-1")
    assert isinstance(outcome, Published)
    assert outcome.status is PublishStatus.REJECTED
    assert detail in outcome.detail


def test_what_just_fits_is_carried() -> None:
    headers = {"h": "x" * (HEADERS_BYTES - len('{"h":""}'))}
    made = entry(message(bytes(MAX_BODY_BYTES), headers=headers))
    assert made.size == len(made.meta) + MAX_BODY_BYTES


def test_a_body_that_is_held_is_delivered_whole_with_the_largest_headers() -> None:
    headers = {"h": "x" * (HEADERS_BYTES - len('{"h":""}'))}
    assert entry(message(bytes(HELD_BODY_BYTES), headers=headers)).size <= DELIVERED_BYTES


def test_meta_has_every_property_by_its_documented_name() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    made = entry(message(timestamp=at, content_type="text/plain", app_id="otter", priority=7))
    assert orjson.loads(made.meta) == {
        "exchange": "orders",
        "routing_key": "order.v1",
        "type": "order.v1",
        "message_id": "m-1",
        "correlation_id": None,
        "timestamp": "2026-03-01T12:00:00.000Z",
        "content_type": "text/plain",
        "app_id": "otter",
        "priority": 7,
        "headers": {},
    }


def test_what_a_stranger_wrote_as_no_text_is_absent() -> None:
    meta = orjson.dumps({"exchange": 7, "type": [], "correlation_id": {}})
    read = StreamDelivery(b"1-0", [b"meta", meta])
    assert (read.exchange, read.routing_key, read.type, read.correlation_id) == ("", "", None, None)


def test_a_dead_letter_keeps_what_the_message_brought_but_its_exchange() -> None:
    made = entry(message(headers={"x-solstice-kept": 1}, priority=7))
    meta = orjson.loads(dead_meta({b"meta": made.meta}, routing_key="order.v1", message_id="m-2", headers={}))
    assert "exchange" not in meta
    assert (meta["type"], meta["priority"], meta["message_id"], meta["headers"]) == ("order.v1", 7, "m-2", {})


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 900, 30_000])
def test_what_is_nested_too_deep_is_absent_and_all_else_is_read(depth: int) -> None:
    nested = "[" * depth + "1" + "]" * depth
    meta = f'{{"type": "t", "k": {nested}, "headers": {{"l": {nested}, "m": 1}}}}'.encode()
    read = StreamDelivery(b"1-0", [b"meta", meta])
    # Deeper than orjson reads JSON, nothing is left of it.
    expected: tuple[str | None, dict[str, int]] = (None, {}) if depth == 30_000 else ("t", {"m": 1})
    assert (read.type, dict(read.headers)) == expected
    written = orjson.loads(dead_meta({b"meta": meta}, routing_key="k", message_id="m-2", headers={}))
    assert "k" not in written
