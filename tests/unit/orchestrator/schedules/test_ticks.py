"""Which of the ticks that have come fires, and which were missed."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.schedules import Missed
from solstice_orchestrator.schedules.cron import timing
from solstice_orchestrator.schedules.ticks import (
    LATE_SECONDS,
    MAX_COUNTED,
    ON_TIME_SECONDS,
    MissedTicks,
    TickDecision,
    TickReason,
    decide_ticks,
)

HOURLY = timing("0 * * * *", "UTC")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.mark.parametrize("missed", Missed)
@pytest.mark.parametrize(
    ("after", "now", "found"),
    [
        pytest.param(NOON - 5, NOON - 1, TickDecision(next_at=NOON), id="not yet"),
        pytest.param(NOON - 5, NOON, TickDecision(due=NOON, next_at=NOON + HOUR), id="at the second"),
        pytest.param(NOON, NOON + 1, TickDecision(next_at=NOON + HOUR), id="not again"),
        pytest.param(
            NOON - 5,
            NOON + ON_TIME_SECONDS,
            TickDecision(due=NOON, next_at=NOON + HOUR),
            id="just on time",
        ),
        pytest.param(
            NOON - 5,
            NOON + ON_TIME_SECONDS + 1,
            TickDecision(due=NOON, reason=TickReason.LATE, next_at=NOON + HOUR),
            id="noticed after a while: late",
        ),
        pytest.param(
            NOON - 5,
            NOON + LATE_SECONDS,
            TickDecision(due=NOON, reason=TickReason.LATE, next_at=NOON + HOUR),
            id="noticed just before it counts as missed: late",
        ),
        pytest.param(NOON + HOUR, NOON, TickDecision(next_at=NOON + 2 * HOUR), id="the clock was set back"),
        pytest.param(
            NOON - 3 * HOUR - 1,
            NOON + 1,
            TickDecision(
                due=NOON,
                next_at=NOON + HOUR,
                missed=MissedTicks(first=NOON - 3 * HOUR, last=NOON - HOUR, count=3),
            ),
            id="the newest is on time",
        ),
    ],
)
def test_a_tick_in_time_does_not_depend_on_the_policy_for_missed_ones(
    after: float, now: float, found: TickDecision, missed: Missed
) -> None:
    assert decide_ticks(HOURLY, after=after, now=now, missed=missed) == found


def test_what_was_missed_is_made_up_for_by_one() -> None:
    found = decide_ticks(HOURLY, after=NOON - 2 * HOUR - 1, now=NOON + 1800, missed=Missed.ONCE)
    assert found == TickDecision(
        due=NOON,
        reason=TickReason.CAUGHT_UP,
        missed=MissedTicks(first=NOON - 2 * HOUR, last=NOON - HOUR, count=2),
        next_at=NOON + HOUR,
    )


def test_what_was_missed_may_be_skipped() -> None:
    found = decide_ticks(HOURLY, after=NOON - 2 * HOUR - 1, now=NOON + 1800, missed=Missed.SKIP)
    assert (found.due, found.missed, found.next_at) == (
        None,
        MissedTicks(first=NOON - 2 * HOUR, last=NOON, count=3),
        NOON + HOUR,
    )


def test_of_very_many_it_is_known_that_they_were_more() -> None:
    minutely = timing("* * * * *", "UTC")
    found = decide_ticks(minutely, after=NOON - 90 * 86_400, now=NOON + 30, missed=Missed.ONCE)
    assert (found.due, found.next_at) == (NOON, NOON + 60)
    assert found.missed == MissedTicks(first=NOON - 90 * 86_400 + 60, last=NOON - 60, count=MAX_COUNTED)


@given(
    expression=st.sampled_from(
        ["*/7 * * * *", "0 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 3 * * SUN", "0 0 1 * *"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    missed=st.sampled_from(Missed),
    start=st.floats(1_760_000_000, 1_800_000_000),
    steps=st.lists(st.floats(-20_000, 50_000) | st.floats(0, 100), min_size=1, max_size=12),
)
def test_every_tick_is_fired_or_recorded_once_however_the_clock_steps(
    expression: str, zone: str, missed: Missed, start: float, steps: list[float]
) -> None:
    when = timing(expression, zone)
    considered = now = start
    fired: list[float] = []
    gaps: list[MissedTicks] = []
    for step in steps:
        now += step
        found = decide_ticks(when, after=considered, now=now, missed=missed)
        settled = [*([found.missed] if found.missed else [])]
        gaps += settled
        if found.due is not None:
            assert found.due <= now
            late = now - found.due
            assert missed is Missed.ONCE or late <= LATE_SECONDS
            assert (found.reason is TickReason.ON_TIME) is (late <= ON_TIME_SECONDS)
            assert (found.reason is TickReason.CAUGHT_UP) is (late > LATE_SECONDS)
            fired.append(found.due)
        considered = max(considered, now)
        assert found.next_at is not None
        assert found.next_at == when.after(considered)
    expected = list(when.between(start, considered))
    recorded = [tick for gap in gaps for tick in when.between(gap.first - 1, gap.last)]
    assert sorted([*fired, *recorded]) == expected
    assert all(first < second for first, second in pairwise(fired))
    assert sum(gap.count for gap in gaps) == len(recorded)


def test_of_ticks_a_second_apart_the_last_that_was_missed_is_the_second_before() -> None:
    every_second = timing("* * * * * *", "UTC", seconds=True)
    found = decide_ticks(every_second, after=NOON, now=NOON + 200, missed=Missed.ONCE)
    assert (found.due, found.missed) == (NOON + 200, MissedTicks(first=NOON + 1, last=NOON + 199, count=199))
