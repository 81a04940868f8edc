"""Checkouts at once: more while it is fast and deep, fewer while slow."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.start_window import (
    StartWindow,
    TimedCheckout,
    after_checkout,
    full_window,
)
from tests.start_response import EMPTY, MOST, SLOW, START_SECONDS, fitting, start_response

SECONDS: Final = st.floats(0.0, 1000.0)
ENDED: Final = st.builds(
    TimedCheckout,
    seconds=SECONDS,
    at_once=st.integers(1, 100),
    succeeded=st.booleans(),
    jobs_wait=st.booleans(),
)
WINDOWS: Final = st.builds(StartWindow, size=st.floats(1.0, 64.0), shrunk_at=st.floats(-10.0, 1000.0))
FAST: Final = TimedCheckout(seconds=1.0, at_once=64, succeeded=True, jobs_wait=True)


def after(window: StartWindow, ended: TimedCheckout, *, most: int = 64, now: float = 1000.0) -> StartWindow:
    return after_checkout(window, ended, target_seconds=2.0, most=most, now=now)


@given(WINDOWS, st.lists(st.tuples(ENDED, st.floats(0.0, 10.0))), st.integers(1, 64))
def test_it_is_never_below_one_nor_above_the_ceiling(
    window: StartWindow, history: list[tuple[TimedCheckout, float]], most: int
) -> None:
    now = 1000.0
    for ended, passed in history:
        now += passed
        before, window = window, after(window, ended, most=most, now=now)
        assert 1 <= window.size <= max(most, before.size)
        assert window.size <= most or window == before, "a ceiling that came down holds from the next change"
        assert window.size <= before.size + 1


@given(WINDOWS, ENDED, SECONDS)
def test_a_slower_checkout_never_makes_it_larger(
    window: StartWindow, ended: TimedCheckout, seconds: float
) -> None:
    # Since the last decrease: what began before says nothing new.
    window = replace(window, shrunk_at=0.0)
    slower = replace(ended, seconds=max(ended.seconds, seconds))
    quicker = replace(ended, seconds=min(ended.seconds, seconds))
    assert after(window, slower).size <= after(window, quicker).size


@given(WINDOWS, ENDED)
def test_a_deeper_queue_never_makes_it_smaller(window: StartWindow, ended: TimedCheckout) -> None:
    deep, shallow = replace(ended, jobs_wait=True), replace(ended, jobs_wait=False)
    assert after(window, deep).size >= after(window, shallow).size


@pytest.mark.parametrize(
    "ended",
    [
        replace(FAST, jobs_wait=False),
        replace(FAST, succeeded=False),
        replace(FAST, at_once=3),
        replace(FAST, seconds=500.0),
    ],
    ids=["no job waits", "it failed", "there was room", "it began before the last decrease"],
)
def test_it_stays_when_nothing_is_learnt(ended: TimedCheckout) -> None:
    window = StartWindow(size=4.0, shrunk_at=900.0)
    assert after(window, ended) == window


def test_a_round_of_fast_checkouts_adds_one_and_a_slow_one_halves() -> None:
    window = StartWindow(size=4.0)
    for _ in range(5):
        window = after(window, FAST)
    assert 5.0 <= window.size < 5.2
    assert after(window, replace(FAST, seconds=2.1)).size == window.size / 2


def test_it_follows_steps_of_speed_and_depth_within_a_bound() -> None:
    moments = start_response()
    settled = 30.0  # seconds after a step
    for begin, end in ((0.0, SLOW[0]), SLOW, (SLOW[1], EMPTY)):
        steady = [each.window for each in moments if begin + settled < each.at < end]
        fits = fitting(begin)
        assert max(steady) <= min(MOST, fits + 2), "it goes one or two past what fits, and learns"
        assert min(steady) >= fits / 2 - 1, "and never below half of it"
    assert len({each.window for each in moments if each.at > EMPTY + settled}) == 1, "nothing waits"
    assert max(each.took for each in moments if settled < each.at < SLOW[0]) < START_SECONDS * 1.5


def test_the_refusal_names_the_numbers_and_the_setting() -> None:
    detail = full_window(StartWindow(size=3.7), 3, 2.0).detail
    assert detail == (
        "3 jobs are being checked out, as many as may be at once (3) so that a checkout takes at most 2 s (START_SECONDS)"
    )
