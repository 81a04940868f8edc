"""Priority classes by name, by number, and from the body of a message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_common.messages.priorities import PRIORITY_NUMBERS, class_in, named_class, numbered_class


@pytest.mark.parametrize("priority", Priority)
def test_class_is_known_by_its_name_and_by_its_number(priority: Priority) -> None:
    assert named_class(priority.value) is priority
    assert class_in(json.dumps({"priority": priority}).encode()) is priority
    assert numbered_class(PRIORITY_NUMBERS[priority]) is priority


@pytest.mark.parametrize(
    ("number", "priority"),
    [(255, "critical"), (8, "high"), (6, "default"), (3, "low"), (0, None), (None, None), (-1, None)],
)
def test_number_between_two_is_the_class_that_it_reaches(number: int | None, priority: str | None) -> None:
    assert numbered_class(number) == priority


@pytest.mark.parametrize("value", [None, 9, "", "Critical", "urgent", ["low"], {"low": 1}, b"low", True])
def test_what_is_no_name_is_no_class(value: Any) -> None:
    assert named_class(value) is None


@given(
    st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda each: json.dumps(each).encode())
)
def test_a_body_of_any_form_names_no_class_or_one(body: bytes) -> None:
    assert class_in(body) is None


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"priority":' + b"[" * 200_000, b"\xff", b""])
def test_body_that_cannot_be_read_names_none(body: bytes) -> None:
    assert class_in(body) is None
