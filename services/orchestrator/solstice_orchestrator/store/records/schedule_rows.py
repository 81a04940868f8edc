"""Rows of schedules and ticks, and the views of them. Pure."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import RunState
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.store.schedule_store import (
    ClaimedTicks,
    ScheduleView,
    SettledTick,
    TickTask,
    TickView,
)

_HEADS: Final = "refs/heads/"


class Schedule(NamedTuple):
    """A schedule's row, the same in every store.

    Its fields have the names of their columns, and those of a ScheduleSpec.
    """

    schedule_id: str
    name: str
    repo_url: str
    repo_full_name: str | None
    branch: str
    cron: str
    timezone: str
    missed: Missed
    overlap: Overlap
    workflow_path: str | None
    workflow_job_id: str | None
    runs_on: str | None
    priority: Priority | None
    paused: bool
    created_by: str | None
    created_at: float
    changed_at: float
    considered_at: float
    """Every tick up to this time has its row."""
    next_at: float | None

    @property
    def ref(self) -> str:
        return full_ref(self.branch)


class Tick(NamedTuple):
    """The row of a tick's result; its fields have the names of their columns."""

    tick_id: str
    schedule_id: str
    tick_at: float
    first_at: float | None
    ticks: int
    """How many ticks it represents."""
    by_hand: bool
    state: TickState
    reason: TickReason
    detail: str = ""
    attempt: int = 0
    failures: int = 0
    retry_at: float | None = None
    lease_until: float | None = None
    worker_id: str | None = None
    settled_at: float | None = None
    run_id: str | None = None
    commit_sha: str | None = None


SCHEDULE: Final = ", ".join(f"schedules.{name}" for name in Schedule._fields)
TICK: Final = ", ".join(f"ticks.{name}" for name in Tick._fields)
_WIDTH: Final = len(Tick._fields)


def schedule_of(row: Any) -> Schedule:
    """Return the schedule of a row with the columns `SCHEDULE`."""
    schedule = Schedule(*row)
    return schedule._replace(
        missed=Missed(schedule.missed),
        overlap=Overlap(schedule.overlap),
        priority=None if schedule.priority is None else Priority(schedule.priority),
        paused=bool(schedule.paused),
    )


def tick_of(row: Any) -> Tick:
    """Return the tick of a row that begins with the columns `TICK`."""
    tick = Tick(*row[:_WIDTH])
    return tick._replace(
        state=TickState(tick.state), reason=TickReason(tick.reason), by_hand=bool(tick.by_hand)
    )


def scheduled_tick_of(row: Any) -> tuple[Schedule, Tick]:
    """Return the schedule and tick of a row with the columns `TICK`, then `SCHEDULE`."""
    return schedule_of(row[_WIDTH:]), tick_of(row)


def tick_view_of(row: Any) -> TickView:
    """Return the view of a row with the columns `TICK`, then its run's state."""
    tick, run_state = tick_of(row), row[_WIDTH]
    return TickView(
        tick_at=tick.tick_at,
        first_at=tick.first_at,
        count=tick.ticks,
        by_hand=tick.by_hand,
        state=tick.state,
        reason=tick.reason,
        detail=tick.detail,
        failures=tick.failures,
        retry_at=tick.retry_at if tick.state is TickState.DUE and tick.failures else None,
        settled_at=tick.settled_at,
        run_id=tick.run_id,
        run_state=None if run_state is None else RunState(run_state),
        commit_sha=tick.commit_sha,
    )


def schedule_view(schedule: Schedule, last: TickView | None) -> ScheduleView:
    """Return the schedule as readers see it."""
    columns = schedule._asdict()
    del columns["considered_at"]
    return ScheduleView(**columns, last=last)


def settled_of(schedule: Schedule, tick: Tick) -> SettledTick:
    """Return the result of the tick, for logs and metrics."""
    return SettledTick(
        schedule_id=schedule.schedule_id,
        schedule=schedule.name,
        tick_at=tick.tick_at,
        state=tick.state,
        reason=tick.reason,
        detail=tick.detail,
        count=tick.ticks,
        late_seconds=max(0.0, (tick.settled_at or tick.tick_at) - tick.tick_at),
        run_id=tick.run_id,
    )


def claimed_ticks(
    claimed: Iterable[tuple[Schedule, Tick]], settled: Iterable[SettledTick], *, more: bool
) -> ClaimedTicks:
    """Return the result of a claim: the taken ticks that are still due are fired."""
    tasks, ended = [], [*settled]
    for schedule, tick in claimed:
        if tick.state is TickState.DUE:
            tasks.append(_task_of(schedule, tick))
        else:
            ended.append(settled_of(schedule, tick))
    return ClaimedTicks(tasks=tasks, settled=ended, more=more)


def full_ref(branch: str) -> str:
    """Return the full ref: `main` is a branch, `refs/tags/v1` stays as it is."""
    return branch if branch.startswith("refs/") else _HEADS + branch


def _task_of(schedule: Schedule, tick: Tick) -> TickTask:
    return TickTask(
        tick_id=tick.tick_id,
        attempt=tick.attempt,
        schedule_id=schedule.schedule_id,
        schedule=schedule.name,
        repo_url=schedule.repo_url,
        ref=schedule.ref,
        tick_at=tick.tick_at,
        by_hand=tick.by_hand,
    )
