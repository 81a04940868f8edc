"""The headers of a dead letter, within the bounds of a frame."""

from datetime import UTC, datetime
from typing import Any

import pytest

from solstice_common.broker import Delivered
from solstice_common.broker.delivery import Refuse, unreadable
from solstice_common.broker.headers import (
    DETAIL_CHARACTERS,
    MAX_DEPTH,
    MAX_FIELDS,
    bounded,
    bounded_meta,
    refusal_headers,
    without_broker_headers,
)

AT = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
REFUSE = Refuse(reason="not_json", detail="line 1")


def refused(headers: dict[str, object]) -> dict[str, object]:
    delivery = Delivered(body=b"", tag=None, headers=headers)
    return refusal_headers(delivery, REFUSE, queue="orders.v1", by="orchestrator", at=AT)


def test_a_dead_letter_says_what_why_where_when_by_whom_and_which_attempt() -> None:
    assert refused({"traceparent": "00-a-b-01"}) == {
        "traceparent": "00-a-b-01",
        "x-solstice-reason": "not_json",
        "x-solstice-detail": "line 1",
        "x-solstice-queue": "orders.v1",
        "x-solstice-refused-at": "2026-01-31T12:00:00.500Z",
        "x-solstice-refused-by": "orchestrator",
        "x-solstice-attempt": 1,
    }


@pytest.mark.parametrize(
    ("sent", "reported"), [(1, 1), (7, 7), (0, 1), (-3, 1), ("2", 1), (None, 1)], ids=repr
)
def test_the_attempt_is_the_senders_if_it_is_one(sent: object, reported: int) -> None:
    assert refused({"x-solstice-attempt": sent})["x-solstice-attempt"] == reported


def test_a_long_detail_is_cut_so_that_the_headers_fit_a_frame() -> None:
    delivery = Delivered(body=b"", tag=None)
    long = Refuse(reason="not_json", detail="y" * 100_000)
    headers = refusal_headers(delivery, long, queue="q", by="b", at=AT)
    assert headers["x-solstice-detail"] == "y" * DETAIL_CHARACTERS


def test_what_a_broker_wrote_is_not_published_again() -> None:
    headers = {
        "x-death": [{}],
        "x-first-death-queue": "a",
        "x-last-death-exchange": "b",
        "x-delivery-count": 3,
        "x-acquired-count": 4,
        "x-solstice-reason": "kept",
        "x-deathly": "kept",
    }
    assert without_broker_headers(headers) == {"x-solstice-reason": "kept", "x-deathly": "kept"}


def test_delivery_that_a_mistake_of_ours_made_unreadable_names_the_mistake_briefly() -> None:
    refusal = unreadable(KeyError("x" * 5000))
    assert refusal.reason == "internal_error"
    assert refusal.detail.startswith("KeyError: 'xxx")
    assert len(refusal.detail) == 1000


def nested(depth: int, *, within: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if within == "list" else {"k": value}
    return value


@pytest.mark.parametrize("within", ["list", "object"])
def test_what_is_nested_too_deep_is_left_out_alone(within: str) -> None:
    deepest = nested(MAX_DEPTH, within=within)
    fields = {"a": 1, "deep": nested(MAX_DEPTH + 1, within=within), "deepest": deepest, "b": 2}
    assert bounded(fields) == {"a": 1, "deepest": deepest, "b": 2}
    assert bounded({"a": nested(100_000, within="list")}) == {}


def test_what_does_not_fit_any_more_is_left_out() -> None:
    fields = {f"k{number}": number for number in range(MAX_FIELDS)}
    assert bounded(fields) == fields
    assert bounded({**fields, "one more": 1}) == fields
    assert bounded({"many": [0] * MAX_FIELDS, "few": [0, 0]}) == {"few": [0, 0]}
    most = {"many": [0] * (MAX_FIELDS - 1)}
    assert bounded({**most, "one more": 1}) == most


def test_properties_and_headers_have_bounds_of_their_own() -> None:
    many = {f"k{number}": number for number in range(MAX_FIELDS)}
    assert bounded_meta({"headers": many, "type": "t"}) == {"headers": many, "type": "t"}
    assert bounded_meta({"headers": {"deep": nested(17, within="list"), "k": 1}}) == {"headers": {"k": 1}}
    assert bounded_meta({"headers": "none"}) == {"headers": "none"}
    assert bounded_meta(["headers"]) == {}
