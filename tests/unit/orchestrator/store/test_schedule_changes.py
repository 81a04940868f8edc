"""What is decided about schedules and their ticks, beside what every store shows of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1, Priority
from solstice_common.messages.schedules import Missed
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.store.decisions.schedule import (
    UNREADABLE_SECONDS,
    ScheduleUpdate,
    added,
    by_hand,
    edited,
    paused,
    progressed,
    resumed,
)
from solstice_orchestrator.store.decisions.tick import request_of
from solstice_orchestrator.store.records.moment import Moment, Rules
from solstice_orchestrator.store.records.schedule_rows import Schedule, full_ref
from tests.schedules import COMMIT, spec

NOON = 1_800_000_000.0


def moment(now: float = NOON) -> Moment:
    rng = random.Random(1)
    return Moment(now, Rules(new_id=id_source(rng), rng=rng))


def schedule(**fields: object) -> Schedule:
    return added(moment(), spec(**fields), "mira").schedule


def test_a_zone_that_this_machine_lacks_is_said_and_holds_up_no_other() -> None:
    unknown = schedule()._replace(timezone="Mars/Olympus", next_at=NOON + 60)
    progress = progressed(moment(NOON + 61), unknown, None)
    (tick,) = progress.new
    assert (tick.state, tick.reason, tick.tick_at) == (
        TickState.FAILED,
        TickReason.NOT_A_REQUEST,
        NOON + 60,
    )
    assert "Mars/Olympus" in tick.detail
    assert progress.schedule.next_at == NOON + 61 + UNREADABLE_SECONDS


def test_a_tick_has_the_same_name_whoever_finds_it_and_when() -> None:
    hourly = schedule()
    first = progressed(moment(NOON + 3600), hourly, None).new[-1]
    later = progressed(moment(NOON + 3700), hourly, None).new[-1]
    assert (first.tick_at, first.tick_id) == (later.tick_at, later.tick_id)
    other = progressed(moment(NOON + 3600), schedule()._replace(schedule_id="another"), None).new[-1]
    assert other.tick_id != first.tick_id
    (asked,) = by_hand(moment(first.tick_at), hourly, None).new
    assert asked.tick_id != first.tick_id


def test_a_tick_that_comes_again_does_not_overtake_itself() -> None:
    """The store's clock was set back while its forge was away, and somebody changed the time there and back."""
    hourly = schedule()
    (pending,) = progressed(moment(NOON + 3600), hourly, None).new
    again = progressed(moment(NOON + 3610), hourly, pending)
    assert ([tick.tick_id for tick in again.new], again.ended) == ([pending.tick_id], [])


def test_a_pause_ends_what_could_not_fire_and_what_has_just_come() -> None:
    hourly = schedule()
    first = progressed(moment(NOON + 3600), hourly, None)
    (pending,) = first.new
    soon = paused(moment(NOON + 3660), first.schedule, pending)
    assert [(tick.tick_id, tick.reason) for tick in soon.ended] == [(pending.tick_id, TickReason.PAUSED)]
    assert (soon.new, soon.schedule.paused, soon.schedule.next_at) == ([], True, None)
    late = paused(moment(NOON + 7200), first.schedule, pending)
    assert [(tick.tick_id, tick.reason) for tick in late.ended] == [(pending.tick_id, TickReason.OVERTAKEN)]
    assert [(tick.state, tick.reason) for tick in late.new] == [(TickState.SKIPPED, TickReason.PAUSED)]
    assert paused(moment(NOON + 9000), late.schedule, None) == ScheduleUpdate(late.schedule, [], ())


@given(
    name=st.text(min_size=1, max_size=300),
    priority=st.none() | st.sampled_from(Priority),
    path=st.none() | st.text(max_size=20),
)
def test_whatever_stands_in_a_row_is_a_request_or_refused(
    name: str, priority: Priority | None, path: str | None
) -> None:
    row = schedule(repo_full_name=name, workflow_path=path)._replace(priority=priority)
    (tick,) = by_hand(moment(), row, None).new
    try:
        request = request_of(moment(), row, tick, COMMIT)
    except InvalidMessage:
        return
    assert JobRequestV1.decode(request.encode()) == request
    assert (request.request_id, request.event, request.sender) == (tick.tick_id, "schedule", "mira")


@pytest.mark.parametrize(
    ("branch", "ref"),
    [("main", "refs/heads/main"), ("release/1", "refs/heads/release/1"), ("refs/tags/v1", "refs/tags/v1")],
)
def test_a_branch_has_a_full_name(branch: str, ref: str) -> None:
    assert full_ref(branch) == ref


def test_what_somebody_asked_for_says_so_and_what_came_by_the_clock_does_not() -> None:
    (asked,) = by_hand(moment(), schedule(), None).new
    assert (asked.by_hand, asked.reason, asked.state) == (True, TickReason.BY_HAND, TickState.DUE)
    came = progressed(moment(NOON + 3600), schedule(), None).new[-1]
    assert (came.by_hand, came.reason, came.state) == (False, TickReason.ON_TIME, TickState.DUE)


@pytest.mark.parametrize(
    ("now", "first_at", "count"),
    [(NOON + 3800, None, 1), (NOON + 7400, NOON + 3600, 2)],
    ids=["one", "two"],
)
def test_missed_ticks_are_one_row_that_says_how_many_they_were(
    now: float, first_at: float | None, count: int
) -> None:
    progress = progressed(moment(now), schedule(missed=Missed.SKIP), None)
    (row,) = progress.new
    assert (row.state, row.reason, row.by_hand) == (TickState.SKIPPED, TickReason.MISSED, False)
    assert (row.first_at, row.tick_at, row.ticks) == (first_at, NOON + 3600 * count, count)
    assert row.settled_at == now
    assert progress.schedule.next_at == NOON + 3600 * (count + 1)


@pytest.mark.parametrize("said", ["", "503 Service Unavailable"])
def test_a_tick_that_makes_way_says_what_its_forge_had_said(said: str) -> None:
    first = progressed(moment(NOON + 3600), schedule(), None)
    pending = first.new[0]._replace(detail=said)
    (gone,) = progressed(moment(NOON + 7200), first.schedule, pending).ended
    assert (gone.state, gone.reason, gone.tick_id) == (
        TickState.FAILED,
        TickReason.OVERTAKEN,
        pending.tick_id,
    )
    assert gone.detail.endswith(f"came: {said}" if said else "came")


def test_another_time_holds_from_now_on_and_what_came_before_it_is_by_the_old_one() -> None:
    changed = edited(moment(NOON + 3610), schedule(), None, {"cron": "30 * * * *"})
    assert [tick.tick_at for tick in changed.new] == [NOON + 3600]
    assert (changed.schedule.next_at, changed.schedule.changed_at) == (NOON + 5400, NOON + 3610)
    elsewhere = edited(moment(NOON + 60), schedule(), None, {"timezone": "Asia/Kathmandu"})
    # Kathmandu is 5:45 ahead: its hours begin at a quarter past.
    assert elsewhere.schedule.next_at == NOON + 900


def test_what_else_changes_leaves_the_next_tick_where_it_is() -> None:
    hourly = schedule()
    renamed = edited(moment(NOON + 60), hourly, None, {"name": "hourly"}).schedule
    assert renamed == hourly._replace(name="hourly", changed_at=NOON + 60)


def test_a_paused_schedule_has_no_ticks_until_it_is_resumed() -> None:
    held = paused(moment(NOON + 60), schedule(), None).schedule
    still = edited(moment(NOON + 120), held, None, {"cron": "30 * * * *"}).schedule
    assert (still.paused, still.next_at) == (True, None)
    assert progressed(moment(NOON + 7200), still, None) == ScheduleUpdate(still)
    again = resumed(moment(NOON + 7300), still, None)
    assert (again.new, again.schedule.paused, again.schedule.next_at) == ((), False, NOON + 9000)
    assert again.schedule.changed_at == again.schedule.considered_at == NOON + 7300
    assert resumed(moment(NOON + 7400), again.schedule, None) == ScheduleUpdate(again.schedule)


def test_a_tick_makes_way_once_however_many_came_after_it() -> None:
    first = progressed(moment(NOON + 3600), schedule(missed=Missed.ONCE), None)
    later = progressed(moment(NOON + 3 * 3600 + 200), first.schedule, first.new[0])
    assert [tick.reason for tick in later.new] == [TickReason.MISSED, TickReason.CAUGHT_UP]
    assert [tick.reason for tick in later.ended] == [TickReason.OVERTAKEN]
