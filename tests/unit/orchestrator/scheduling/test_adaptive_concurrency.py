"""Slots shrink by half on infrastructure failures, and come back one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.adaptive_concurrency import (
    GROW_SECONDS,
    SETTLE_SECONDS,
    ConcurrencyWindow,
    after_trouble,
    is_trouble,
    slots,
    while_trouble_lasts,
)
from solstice_orchestrator.scheduling.governor import Resource, StartRefusal
from tests.stores import CHECKOUT_ERRORED, FAILED, RELEASED, SUCCEEDED


@pytest.mark.parametrize(
    ("window", "limit", "at", "expected"),
    [
        (None, 8, 0.0, 8),
        (ConcurrencyWindow(slots=4.0, at=0.0), 8, 0.0, 4),
        (ConcurrencyWindow(slots=4.0, at=0.0), 8, GROW_SECONDS - 1, 4),
        (ConcurrencyWindow(slots=4.0, at=0.0), 8, GROW_SECONDS, 5),
        (ConcurrencyWindow(slots=4.0, at=0.0), 8, 100 * GROW_SECONDS, 8),
        (ConcurrencyWindow(slots=1.0, at=0.0), 8, 0.0, 1),
        (ConcurrencyWindow(slots=1.0, at=0.0), 0, 0.0, 0),
    ],
)
def test_slots_grow_back_one_by_one(
    window: ConcurrencyWindow | None, limit: int, at: float, expected: int
) -> None:
    assert slots(window, limit, at) == expected


def test_trouble_halves_and_what_comes_with_it_is_the_same_trouble() -> None:
    window = after_trouble(None, 16, 0.0)
    assert slots(window, 16, 0.0) == 8
    assert after_trouble(window, 16, SETTLE_SECONDS - 0.1) is window
    window = after_trouble(window, 16, SETTLE_SECONDS)
    assert slots(window, 16, SETTLE_SECONDS) == 4


def test_a_window_does_not_grow_while_trouble_lasts_and_keeps_what_it_had_grown() -> None:
    window = ConcurrencyWindow(slots=4.0, at=0.0)
    lasting = while_trouble_lasts(window, 16, since=1.5 * GROW_SECONDS, now=9 * GROW_SECONDS)
    assert lasting is not None
    assert slots(lasting, 16, 9 * GROW_SECONDS) == 5
    assert slots(lasting, 16, 9.5 * GROW_SECONDS) == 6
    assert while_trouble_lasts(None, 16, since=0.0, now=1.0) is None


def test_trouble_again_and_again_leaves_one_slot() -> None:
    window = None
    for number in range(5):
        window = after_trouble(window, 4, number * SETTLE_SECONDS)
    assert slots(window, 4, 4 * SETTLE_SECONDS) == 1


@given(st.integers(1, 200), st.lists(st.floats(0.0, 1000.0), max_size=30))
def test_there_is_always_one_slot_never_more_than_all_and_all_come_back(
    limit: int, pauses: list[float]
) -> None:
    window, now = None, 0.0
    for pause in pauses:
        before = slots(window, limit, now + pause)
        assert slots(window, limit, now) <= before
        now += pause
        window = after_trouble(window, limit, now)
        assert 1 <= slots(window, limit, now) <= before <= limit
    assert slots(window, limit, now + limit * GROW_SECONDS) == limit


@pytest.mark.parametrize(
    ("cause", "counts"),
    [
        (CHECKOUT_ERRORED, False),
        (Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED), True),
        (FAILED, False),
        (SUCCEEDED, False),
        (RELEASED, False),
        (StartRefusal(resource=Resource.LOAD, detail=""), True),
        (StartRefusal(resource=Resource.MEMORY, detail=""), True),
        (StartRefusal(resource=Resource.DISK, detail=""), False),
        (StartRefusal(resource=Resource.STARTING, detail=""), False),
    ],
    ids=lambda each: getattr(each, "reason", getattr(each, "resource", None)),
)
def test_only_what_fewer_jobs_help_against_counts(cause: Outcome | StartRefusal, counts: bool) -> None:
    assert is_trouble(cause) is counts
