"""When intake is paused, and when it resumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.backpressure import LEAST_LIMIT, intake_limit, pauses_intake
from tests.step_response import INTAKE_SECONDS, MOST, SLOW, step_response


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


@pytest.mark.parametrize(
    ("most", "speed", "seconds", "limit"),
    [
        (2000, 20.0, 60.0, 1200),
        (2000, 5.0, 60.0, 300),
        (2000, 500.0, 60.0, 2000),
        (2000, 0.0, 60.0, LEAST_LIMIT),
        (50, 0.0, 60.0, 50),
        (2000, None, 60.0, 2000),
        (2000, 1.0, 0.0, 2000),
        (0, 1.0, 60.0, 0),
        (2000, 1.0, float("inf"), 2000),
    ],
)
def test_the_limit_of_intake_follows_the_speed_below_the_most(
    most: int, speed: float | None, seconds: float, limit: int
) -> None:
    assert intake_limit(most, jobs_per_second=speed, seconds=seconds) == limit


def test_intake_follows_a_step_in_the_speed_and_back() -> None:
    moments = step_response()
    assert all(each.backlog <= MOST and each.limit <= MOST for each in moments)
    fast, slow, again = moments[SLOW.start - 1], moments[SLOW.stop - 1], moments[-1]
    assert (fast.limit, slow.limit, again.limit) == (1200, 300, 1200)
    for each in moments[60 : SLOW.start] + moments[SLOW.start + 240 : SLOW.stop] + moments[SLOW.stop + 60 :]:
        # Never more than the seconds of the setting, nor so little that workers would be idle.
        assert 0.5 * INTAKE_SECONDS < each.backlog / (each.limit / INTAKE_SECONDS) <= INTAKE_SECONDS
    # No step leaves slots empty while requests are there.
    assert (
        sum(each.done for each in moments)
        >= 20 * (SLOW.start + len(moments) - SLOW.stop) + 5 * len(SLOW) - 200
    )
