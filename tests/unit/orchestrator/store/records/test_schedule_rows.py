"""Rows of schedules and ticks as readers, logs and the firing loop see them."""

import random
from dataclasses import asdict
from typing import Any

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.store.decisions.schedule import added, by_hand
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.records.schedule_rows import (
    SCHEDULE,
    TICK,
    Schedule,
    Tick,
    claimed_ticks,
    full_ref,
    schedule_view,
    scheduled_tick_of,
    settled_of,
    tick_view_of,
)
from tests.schedules import spec


def moment(now: float) -> Moment:
    rng = random.Random(1)
    return Moment(now, StoreRules(new_id=id_source(rng), rng=rng))


DAILY = added(moment(5.0), spec(priority=Priority.HIGH), "mira").schedule


def tick(state: TickState, **changes: Any) -> Tick:
    made = Tick(
        tick_id="t",
        schedule_id=DAILY.schedule_id,
        tick_at=100.0,
        first_at=40.0,
        ticks=3,
        by_hand=True,
        state=state,
        reason=TickReason.LATE,
        detail="it was busy",
        attempt=2,
        failures=1,
        retry_at=130.0,
        settled_at=None,
        run_id="r",
        commit_sha="c" * 40,
    )
    return made._replace(**changes)


def stored(row: Schedule | Tick) -> tuple[Any, ...]:
    """The row as a database returns it."""
    return tuple(int(each) if isinstance(each, bool) else each for each in row)


def test_rows_become_the_values_that_they_were() -> None:
    due = tick(TickState.DUE)
    schedule, found = scheduled_tick_of((*stored(due), *stored(DAILY)))
    assert (schedule, found) == (DAILY, due)
    assert (type(schedule.missed), type(schedule.overlap)) == (Missed, Overlap)
    assert (schedule.paused, found.by_hand) == (False, True)
    assert isinstance(schedule.paused, bool)
    plain = DAILY._replace(priority=None, missed=Missed.SKIP)
    assert scheduled_tick_of((*stored(due), *stored(plain)))[0] == plain


def test_columns_are_read_in_the_order_of_the_fields() -> None:
    assert SCHEDULE.split(", ") == [f"schedules.{name}" for name in Schedule._fields]
    assert TICK.split(", ") == [f"ticks.{name}" for name in Tick._fields]


@pytest.mark.parametrize(
    ("state", "failures", "retry_at"),
    [(TickState.DUE, 1, 130.0), (TickState.DUE, 0, None), (TickState.FAILED, 1, None)],
    ids=["failed and due", "never failed", "settled"],
)
def test_only_a_due_tick_that_failed_is_tried_again(
    state: TickState, failures: int, retry_at: float | None
) -> None:
    view = tick_view_of((*stored(tick(state, failures=failures)), "waiting"))
    assert view.retry_at == retry_at
    assert (view.state, view.failures, view.run_state) == (state, failures, RunState.WAITING)


def test_a_tick_is_shown_with_all_that_its_row_says() -> None:
    view = tick_view_of((*stored(tick(TickState.FIRED, settled_at=101.0)), None))
    assert asdict(view) == {
        "tick_at": 100.0,
        "first_at": 40.0,
        "count": 3,
        "by_hand": True,
        "state": TickState.FIRED,
        "reason": TickReason.LATE,
        "detail": "it was busy",
        "failures": 1,
        "retry_at": None,
        "settled_at": 101.0,
        "run_id": "r",
        "run_state": None,
        "commit_sha": "c" * 40,
    }


def test_a_schedule_is_shown_with_its_last_tick() -> None:
    last = tick_view_of((*stored(tick(TickState.FIRED)), None))
    view = schedule_view(DAILY, last)
    assert view.last is last
    shown = {name: value for name, value in DAILY._asdict().items() if name != "considered_at"}
    assert {name: getattr(view, name) for name in shown} == shown


@pytest.mark.parametrize(
    ("settled_at", "late"),
    [(160.0, 60.0), (99.0, 0.0), (None, 0.0)],
    ids=["late", "clock set back", "unsettled"],
)
def test_a_settled_tick_says_how_late_it_was(settled_at: float | None, late: float) -> None:
    settled = settled_of(DAILY, tick(TickState.SKIPPED, settled_at=settled_at))
    assert settled.late_seconds == late
    assert (settled.schedule_id, settled.schedule) == (DAILY.schedule_id, DAILY.name)
    assert (settled.tick_at, settled.count, settled.run_id) == (100.0, 3, "r")
    assert (settled.state, settled.reason, settled.detail) == (
        TickState.SKIPPED,
        TickReason.LATE,
        "it was busy",
    )


def test_of_a_claim_the_due_ticks_are_fired_and_the_others_are_over() -> None:
    due, skipped = tick(TickState.DUE), tick(TickState.SKIPPED, tick_id="u", settled_at=100.0)
    before = settled_of(DAILY, tick(TickState.FAILED))
    claim = claimed_ticks([(DAILY, due), (DAILY, skipped)], [before], more=True)
    assert (claim.more, list(claim.settled)) == (True, [before, settled_of(DAILY, skipped)])
    (task,) = claim.tasks
    assert asdict(task) == {
        "tick_id": "t",
        "attempt": 2,
        "schedule_id": DAILY.schedule_id,
        "schedule": DAILY.name,
        "repo_url": DAILY.repo_url,
        "ref": full_ref(DAILY.branch),
        "tick_at": 100.0,
        "by_hand": True,
    }


def test_a_tick_that_has_just_come_has_no_past() -> None:
    (new_tick,) = by_hand(moment(100.0), DAILY, None).new
    assert (new_tick.state, new_tick.tick_at, new_tick.retry_at) == (TickState.DUE, 100.0, 100.0)
    assert (new_tick.detail, new_tick.attempt, new_tick.failures) == ("", 0, 0)
    later = (
        new_tick.lease_until,
        new_tick.worker_id,
        new_tick.settled_at,
        new_tick.run_id,
        new_tick.commit_sha,
    )
    assert later == (None,) * 5


@pytest.mark.parametrize(
    ("branch", "ref"),
    [("main", "refs/heads/main"), ("release/1", "refs/heads/release/1"), ("refs/tags/v1", "refs/tags/v1")],
)
def test_a_branch_has_a_full_name(branch: str, ref: str) -> None:
    assert full_ref(branch) == ref
