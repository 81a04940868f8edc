"""Metadata records of dead letters are read back as they were written."""

import string
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.dead_letters.meta_records import dead_letter_of, meta_of_dead_letter

TEXT = st.none() | st.text(string.printable, min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
)
DEAD_LETTERS = st.builds(
    DeadLetter,
    queue=st.just("q.dlq"),
    body=st.binary(),
    headers=st.dictionaries(st.text(), JSON),
    type=TEXT,
    correlation_id=TEXT,
    message_id=TEXT,
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none()
    | st.integers(0, 4_000_000_000).map(
        lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    ),
    content_type=TEXT,
    app_id=TEXT,
)


@given(DEAD_LETTERS)
def test_what_is_put_back_is_read_as_it_was_under_the_same_id(dead_letter: DeadLetter) -> None:
    again = dead_letter_of(
        dead_letter.queue, dead_letter.body, meta_of_dead_letter(dead_letter), message_id=None
    )
    assert again.id == dead_letter.id
    counters = {"x-delivery-count", "x-acquired-count"}
    assert again.headers == {k: v for k, v in dead_letter.headers.items() if k not in counters}
    assert (again.message_id, again.correlation_id, again.priority) == (
        dead_letter.message_id,
        dead_letter.correlation_id,
        dead_letter.priority,
    )
    assert (again.type, again.timestamp, again.content_type, again.app_id) == (
        dead_letter.type,
        dead_letter.timestamp,
        dead_letter.content_type,
        dead_letter.app_id,
    )


@given(st.dictionaries(st.sampled_from(["headers", "type", "priority", "timestamp", "message_id"]), JSON))
def test_any_text_of_a_stranger_is_read_without_an_error(meta: dict[str, object]) -> None:
    found = dead_letter_of("q.dlq", b"", meta, message_id="1-0")
    assert found.message_id
    assert len(found.id) == 16


@pytest.mark.parametrize("priority", [True, -1, 256, "4", 4.5])
def test_what_is_no_octet_is_no_priority(priority: object) -> None:
    assert dead_letter_of("q.dlq", b"", {"priority": priority}, message_id=None).priority is None


@pytest.mark.parametrize("priority", [0, 1, 255])
def test_an_octet_is_a_priority(priority: int) -> None:
    assert dead_letter_of("q.dlq", b"", {"priority": priority}, message_id=None).priority == priority


def test_a_message_without_an_id_has_that_of_its_place() -> None:
    assert dead_letter_of("q.dlq", b"", {}, message_id="1-0").message_id == "1-0"
    assert dead_letter_of("q.dlq", b"", {"message_id": "m-1"}, message_id="1-0").message_id == "m-1"


def test_counters_of_the_broker_are_neither_read_nor_put_back() -> None:
    headers = {"x-delivery-count": 3, "x-solstice-reason": "not_json"}
    read = dead_letter_of("q.dlq", b"", {"headers": headers}, message_id=None)
    assert read.headers == {"x-solstice-reason": "not_json"}
    put_back = meta_of_dead_letter(DeadLetter(queue="q.dlq", body=b"", headers=headers))
    assert put_back["headers"] == {"x-solstice-reason": "not_json"}


def test_a_time_and_a_type_are_read_and_put_back() -> None:
    meta = {"timestamp": "2026-03-01T12:00:00.000Z", "content_type": "application/json"}
    read = dead_letter_of("q.dlq", b"", meta, message_id=None)
    assert read.timestamp == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert {name: meta_of_dead_letter(read)[name] for name in meta} == meta
    assert dead_letter_of("q.dlq", b"", {"timestamp": "soon"}, message_id=None).timestamp is None
