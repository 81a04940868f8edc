"""Decisions about schedules, beyond the contract suite of the stores."""

import random

import pytest

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
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.records.schedule_rows import Schedule
from tests.schedules import spec

NOON = 1_800_000_000.0


def moment(now: float = NOON) -> Moment:
    rng = random.Random(1)
    return Moment(now, StoreRules(new_id=id_source(rng), rng=rng))


def schedule(**fields: object) -> Schedule:
    return added(moment(), spec(**fields), "mira").schedule


def test_a_zone_that_this_machine_lacks_is_reported_and_holds_up_no_other() -> None:
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


def test_a_tick_has_the_same_id_for_every_finder_at_any_time() -> None:
    hourly = schedule()
    first = progressed(moment(NOON + 3600), hourly, None).new[-1]
    later = progressed(moment(NOON + 3700), hourly, None).new[-1]
    assert (first.tick_at, first.tick_id) == (later.tick_at, later.tick_id)
    other = progressed(moment(NOON + 3600), schedule()._replace(schedule_id="another"), None).new[-1]
    assert other.tick_id != first.tick_id
    (requested_tick,) = by_hand(moment(first.tick_at), hourly, None).new
    assert requested_tick.tick_id != first.tick_id


def test_a_tick_has_one_name_whether_it_was_missed_or_came_in_time() -> None:
    (due,) = progressed(moment(NOON + 3600), schedule(), None).new
    (missed,) = progressed(moment(NOON + 3800), schedule(missed=Missed.SKIP), None).new
    assert (missed.tick_at, missed.reason) == (due.tick_at, TickReason.MISSED)
    assert missed.tick_id == due.tick_id


def test_a_tick_that_comes_again_does_not_overtake_itself() -> None:
    """The store's clock was set back during a lookup, and the schedule changed twice."""
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


def test_requests_by_hand_show_their_requester_and_scheduled_ones_do_not() -> None:
    (requested_tick,) = by_hand(moment(), schedule(), None).new
    assert (requested_tick.by_hand, requested_tick.reason, requested_tick.state) == (
        True,
        TickReason.BY_HAND,
        TickState.DUE,
    )
    new_ticks = progressed(moment(NOON + 3600), schedule(), None).new[-1]
    assert (new_ticks.by_hand, new_ticks.reason, new_ticks.state) == (
        False,
        TickReason.ON_TIME,
        TickState.DUE,
    )


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


@pytest.mark.parametrize("detail_before", ["", "503 Service Unavailable"])
def test_a_replaced_tick_keeps_the_last_error_of_its_forge(detail_before: str) -> None:
    first = progressed(moment(NOON + 3600), schedule(), None)
    pending = first.new[0]._replace(detail=detail_before)
    (gone,) = progressed(moment(NOON + 7200), first.schedule, pending).ended
    assert (gone.state, gone.reason, gone.tick_id) == (
        TickState.FAILED,
        TickReason.OVERTAKEN,
        pending.tick_id,
    )
    assert gone.detail.endswith(f"came: {detail_before}" if detail_before else "came")


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
    paused_schedule = paused(moment(NOON + 60), schedule(), None).schedule
    still = edited(moment(NOON + 120), paused_schedule, None, {"cron": "30 * * * *"}).schedule
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
