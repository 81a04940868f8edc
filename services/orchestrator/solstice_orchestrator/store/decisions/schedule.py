"""Decides the changes of a schedule: by its ticks or by a person's order. Pure.

(moment, its rows) -> rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from solstice_common.messages import derive_request_id
from solstice_common.values.times import format_seconds
from solstice_orchestrator.schedules.cron import InvalidCron, Timing, timing
from solstice_orchestrator.schedules.ticks import MissedTicks, TickReason, TickState, decide_ticks
from solstice_orchestrator.store.decisions.tick import EVENT, ended
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.schedule_rows import Schedule, Tick
from solstice_orchestrator.store.schedule_store import ScheduleChanges, ScheduleSpec

UNREADABLE_SECONDS: Final = 3600.0
"""The pause between two tries to read a schedule's timing."""


class NameTaken(Exception):
    """Another schedule has the name that a schedule was to get.

    A store raises it and writes nothing.
    """


class ScheduleUpdate(NamedTuple):
    """A schedule after a change, and the changes of its ticks."""

    schedule: Schedule
    new: Sequence[Tick] = ()
    """New ticks, written unless they already have a row."""
    ended: Sequence[Tick] = ()
    """Ticks that were due."""


Decide = Callable[[Moment, Schedule, Tick | None], ScheduleUpdate]
"""Decides a person's change; the tick is the one that has not fired yet, if any."""


def added(moment: Moment, spec: ScheduleSpec, created_by: str | None) -> ScheduleUpdate:
    """Return a new schedule."""
    return ScheduleUpdate(
        Schedule(
            schedule_id=moment.new_id(),
            **asdict(spec),
            paused=False,
            created_by=created_by,
            created_at=moment.now,
            changed_at=moment.now,
            considered_at=moment.now,
            next_at=_timing(spec.cron, spec.timezone).after(moment.now),
        )
    )


def edited(
    moment: Moment, schedule: Schedule, pending: Tick | None, changes: ScheduleChanges
) -> ScheduleUpdate:
    """Change the schedule's values; its ticks until now follow the old timing."""
    changed = progressed(moment, schedule, pending)
    new = changed.schedule._replace(**changes, changed_at=moment.now)
    if (new.cron, new.timezone) != (schedule.cron, schedule.timezone) and not new.paused:
        new = _from_now_on(new, moment.now)
    return changed._replace(schedule=new)


def paused(moment: Moment, schedule: Schedule, pending: Tick | None) -> ScheduleUpdate:
    """Pause the schedule; a tick that is due does not fire."""
    changed = progressed(moment, schedule, pending)
    new = changed.schedule
    if not new.paused:
        new = new._replace(paused=True, next_at=None, changed_at=moment.now)
    gone = changed.ended
    if pending is not None and not gone:
        gone = [_skipped(pending, moment)]
    added = [_skipped(tick, moment) if tick.state is TickState.DUE else tick for tick in changed.new]
    return ScheduleUpdate(new, added, gone)


def resumed(moment: Moment, schedule: Schedule, _: Tick | None) -> ScheduleUpdate:
    """Resume the schedule, with its next tick after this moment."""
    if not schedule.paused:
        return ScheduleUpdate(schedule)
    return ScheduleUpdate(_from_now_on(schedule._replace(paused=False, changed_at=moment.now), moment.now))


def by_hand(moment: Moment, schedule: Schedule, _: Tick | None) -> ScheduleUpdate:
    """Add a tick that a person asked for."""
    return ScheduleUpdate(schedule, [_due(moment, schedule, moment.now, TickReason.BY_HAND)])


def progressed(moment: Moment, schedule: Schedule, pending: Tick | None) -> ScheduleUpdate:
    """Add a row for every tick up to now.

    `pending` is a tick that is still due; a newer tick replaces it.
    """
    if schedule.next_at is None or schedule.next_at > moment.now:
        return ScheduleUpdate(schedule)
    try:
        when = _timing(schedule.cron, schedule.timezone)
    except InvalidCron as error:
        return _unreadable(moment, schedule, schedule.next_at, str(error))
    decided = decide_ticks(when, after=schedule.considered_at, now=moment.now, missed=schedule.missed)
    ticks: list[Tick] = []
    if decided.missed is not None:
        ticks.append(_missed(moment, schedule, decided.missed))
    if decided.due is not None:
        ticks.append(_due(moment, schedule, decided.due, decided.reason))
    overtaken = [
        _overtaken(pending, moment)
        for newest in ticks[-1:]
        # After the clock was set back, the same tick may come again.
        if pending is not None and newest.tick_id != pending.tick_id
    ]
    return ScheduleUpdate(
        schedule._replace(considered_at=max(schedule.considered_at, moment.now), next_at=decided.next_at),
        ticks,
        overtaken,
    )


def _timing(cron: str, zone: str) -> Timing:
    # The API decides who may use seconds; here they are always allowed.
    return timing(cron, zone, seconds=True)


def _from_now_on(schedule: Schedule, now: float) -> Schedule:
    return schedule._replace(considered_at=now, next_at=_timing(schedule.cron, schedule.timezone).after(now))


def _unreadable(moment: Moment, schedule: Schedule, tick_at: float, why: str) -> ScheduleUpdate:
    """Record a failed tick when this machine cannot read the timing.

    Its time zone database may lack a zone that another machine knew. Other schedules go on meanwhile.
    """
    tick = _due(moment, schedule, tick_at, TickReason.ON_TIME)
    failed = ended(tick, moment, TickState.FAILED, TickReason.NOT_A_REQUEST, why)
    return ScheduleUpdate(
        schedule._replace(considered_at=moment.now, next_at=moment.now + UNREADABLE_SECONDS), [failed]
    )


def _missed(moment: Moment, schedule: Schedule, gap: MissedTicks) -> Tick:
    return Tick(
        tick_id=_tick_id(schedule, gap.last),
        schedule_id=schedule.schedule_id,
        tick_at=gap.last,
        first_at=gap.first if gap.count > 1 else None,
        ticks=gap.count,
        by_hand=False,
        state=TickState.SKIPPED,
        reason=TickReason.MISSED,
        detail="no orchestrator looked at its schedule in time",
        settled_at=moment.now,
    )


def _due(moment: Moment, schedule: Schedule, tick_at: float, reason: TickReason) -> Tick:
    is_requested = reason is TickReason.BY_HAND
    return Tick(
        tick_id=_tick_id(schedule, tick_at, *(["by hand"] if is_requested else [])),
        schedule_id=schedule.schedule_id,
        tick_at=tick_at,
        first_at=None,
        ticks=1,
        by_hand=is_requested,
        state=TickState.DUE,
        reason=reason,
        retry_at=moment.now,
    )


def _overtaken(pending: Tick, moment: Moment) -> Tick:
    answer = f": {pending.detail}" if pending.detail else ""
    detail = f"its forge did not answer before the next tick came{answer}"
    return ended(pending, moment, TickState.FAILED, TickReason.OVERTAKEN, detail)


def _skipped(tick: Tick, moment: Moment) -> Tick:
    detail = "its schedule was paused before it could fire"
    return ended(tick, moment, TickState.SKIPPED, TickReason.PAUSED, detail)


def _tick_id(schedule: Schedule, tick_at: float, *more: str) -> str:
    """Return the tick's id: the same for the same tick, so it has one row."""
    return derive_request_id(EVENT, schedule.schedule_id, format_seconds(tick_at), *more)
