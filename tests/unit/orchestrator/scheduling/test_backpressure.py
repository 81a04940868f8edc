"""When intake is paused, and when it resumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.backpressure import pauses_intake


@pytest.mark.parametrize(
    ("backlog", "most", "paused", "then"),
    [
        (99, 100, False, False),
        (100, 100, False, True),
        (81, 100, True, True),
        (80, 100, True, False),
        (1, 1, False, True),
        (1, 1, True, True),
        (0, 1, True, False),
        (10**9, 0, False, False),
        (10**9, 0, True, False),
    ],
)
def test_it_holds_at_the_most_and_goes_on_when_a_fifth_is_gone(
    backlog: int,
    most: int,
    paused: bool,
    then: bool,
) -> None:
    assert pauses_intake(backlog, most, paused=paused) is then


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_an_empty_store_takes_and_who_holds_would_begin_to_no_later(backlog: int, most: int) -> None:
    assert not pauses_intake(0, most, paused=True)
    assert pauses_intake(backlog, most, paused=True) or not pauses_intake(backlog, most, paused=False)
