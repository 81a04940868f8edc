"""Schedules and their ticks as the store keeps them, and what is decided about their rows. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from solstice_common.backoff import backoff_seconds
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobRequestV1, Priority, derive_request_id
from solstice_common.times import format_seconds
from solstice_orchestrator.cron import InvalidCron, Timing, timing
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.store.moment import Moment
from solstice_orchestrator.store.timetable import (
    ScheduleChanges,
    ScheduleSpec,
    ScheduleView,
    Settled,
    TickTask,
    TickView,
)
from solstice_orchestrator.ticks import (
    RETRY_BASE_SECONDS,
    RETRY_CAP_SECONDS,
    Gap,
    Missed,
    Overlap,
    TickReason,
    TickState,
    consider,
)

EVENT: Final = "schedule"
_HEADS: Final = "refs/heads/"
_MAX_DETAIL: Final = 1000
UNREADABLE_SECONDS: Final = 3600.0
"""Between two looks at a schedule whose time cannot be read."""


class Schedule(NamedTuple):
    """A schedule's row; its fields have the names of their columns, in every store."""

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
    priority: str | None
    paused: bool
    created_by: str | None
    created_at: float
    changed_at: float
    considered_at: float
    """Every tick up to here has its row."""
    next_at: float | None

    @property
    def ref(self) -> str:
        return full_ref(self.branch)


class Tick(NamedTuple):
    """A row of what became of a tick; its fields have the names of their columns, in every store."""

    tick_id: str
    schedule_id: str
    tick_at: float
    first_at: float | None
    ticks: int
    """How many it stands for."""
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


class Progress(NamedTuple):
    """What came of a schedule whose time has come."""

    schedule: Schedule
    new: Sequence[Tick] = ()
    overtaken: Tick | None = None


def full_ref(branch: str) -> str:
    """`main` is a branch, `refs/tags/v1` is what it says."""
    return branch if branch.startswith("refs/") else _HEADS + branch


def added(moment: Moment, spec: ScheduleSpec, created_by: str | None) -> Schedule:
    """The row of a new schedule."""
    return Schedule(
        schedule_id=moment.new_id(),
        name=spec.name,
        repo_url=spec.repo_url,
        repo_full_name=spec.repo_full_name,
        branch=spec.branch,
        cron=spec.cron,
        timezone=spec.timezone,
        missed=spec.missed,
        overlap=spec.overlap,
        workflow_path=spec.workflow_path,
        workflow_job_id=spec.workflow_job_id,
        runs_on=spec.runs_on,
        priority=spec.priority,
        paused=False,
        created_by=created_by,
        created_at=moment.now,
        changed_at=moment.now,
        considered_at=moment.now,
        next_at=_timing(spec.cron, spec.timezone).after(moment.now),
    )


def edited(schedule: Schedule, changes: ScheduleChanges, now: float) -> Schedule:
    """The row with other values."""
    new = schedule._replace(**changes, changed_at=now)
    if (new.cron, new.timezone) == (schedule.cron, schedule.timezone) or new.paused:
        return new
    return _from_now_on(new, now)


def paused(schedule: Schedule, now: float) -> Schedule:
    """The row of a schedule without ticks."""
    return schedule if schedule.paused else schedule._replace(paused=True, next_at=None, changed_at=now)


def resumed(schedule: Schedule, now: float) -> Schedule:
    """The row of a schedule with ticks again."""
    if not schedule.paused:
        return schedule
    return _from_now_on(schedule._replace(paused=False, changed_at=now), now)


def progressed(moment: Moment, schedule: Schedule, pending: Tick | None) -> Progress:
    """Every tick up to now has its row; `pending` is one that is still due, and makes way for a newer one."""
    try:
        when = _timing(schedule.cron, schedule.timezone)
    except InvalidCron as error:
        return _unreadable(moment, schedule, str(error))
    found = consider(when, after=schedule.considered_at, now=moment.now, missed=schedule.missed)
    new = schedule._replace(considered_at=max(schedule.considered_at, moment.now), next_at=found.next_at)
    overtaken = None
    if pending is not None and (found.due is not None or found.missed is not None):
        said = f": {pending.detail}" if pending.detail else ""
        detail = f"its forge did not answer before the next tick came{said}"
        overtaken = _ended(pending, moment, TickState.FAILED, TickReason.OVERTAKEN, detail)
    ticks: list[Tick] = []
    if found.missed is not None:
        ticks.append(_missed(moment, schedule, found.missed))
    if found.due is not None:
        ticks.append(_due(moment, schedule, found.due, found.reason))
    return Progress(new, ticks, overtaken)


def by_hand(moment: Moment, schedule: Schedule) -> Tick:
    """A tick that somebody asked for."""
    return _due(moment, schedule, moment.now, TickReason.BY_HAND)


def claimed(tick: Tick, moment: Moment, worker_id: str) -> Tick:
    """The tick in somebody's hands."""
    return tick._replace(
        attempt=tick.attempt + 1,
        lease_until=moment.now + moment.rules.lease_seconds,
        worker_id=worker_id,
    )


def released(tick: Tick, now: float) -> Tick:
    """The tick in nobody's hands."""
    return tick._replace(lease_until=None, worker_id=None, retry_at=now)


def task_of(schedule: Schedule, tick: Tick) -> TickTask:
    """What its holder has to know of a claimed tick."""
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


def is_held(tick: Tick, task: TickTask) -> bool:
    """Whether the tick is still in the hands of this attempt."""
    return tick.state is TickState.DUE and tick.attempt == task.attempt and tick.lease_until is not None


def is_fired(tick: Tick, task: TickTask) -> bool:
    """Whether this attempt has fired it already, of which its holder may not have heard."""
    return tick.state is TickState.FIRED and tick.attempt == task.attempt


def request_of(moment: Moment, schedule: Schedule, tick: Tick, commit_sha: str) -> JobRequestV1:
    """What the tick asks for; the same tick has the same request id and key, however often it is tried.

    It was asked for now, whenever it was due: it is about what the branch holds now. Raises InvalidMessage.
    """
    fields: dict[str, object] = {
        "schema_version": JobRequestV1.VERSION,
        "request_id": tick.tick_id,
        "source": "manual",
        "event": EVENT,
        "repo_url": schedule.repo_url,
        "repo_full_name": schedule.repo_full_name,
        "commit_sha": commit_sha,
        "ref": schedule.ref,
        "submitted_at": moment.stamp,
        "workflow_path": schedule.workflow_path,
        "workflow_job_id": schedule.workflow_job_id,
        "runs_on": schedule.runs_on,
        "priority": schedule.priority,
        "sender": schedule.created_by,
        # Whoever may add a schedule may run code here: that is what the scope says.
        "trusted": True,
        "idempotency_key": f"{EVENT}:{tick.tick_id}",
    }
    try:
        request, _ = JobRequestV1.compose(
            {name: value for name, value in fields.items() if value is not None}
        )
    except ValueError as error:
        raise InvalidMessage("invalid_field", str(error)) from None
    return request


def fired(tick: Tick, moment: Moment, run_id: str, commit_sha: str) -> Tick:
    """The tick that became a run."""
    return _ended(tick, moment, TickState.FIRED, tick.reason, "")._replace(
        run_id=run_id, commit_sha=commit_sha
    )


def not_fired(tick: Tick, moment: Moment, reason: TickReason, detail: str, *, again: bool) -> Tick:
    """The tick that could not become one, for now or for ever."""
    if not again or tick.by_hand:
        return _ended(tick, moment, TickState.FAILED, reason, detail)._replace(failures=tick.failures + 1)
    pause = backoff_seconds(
        tick.failures,
        rng=moment.rules.rng,
        base_seconds=RETRY_BASE_SECONDS,
        cap_seconds=RETRY_CAP_SECONDS,
    )
    return released(tick, moment.now + pause)._replace(
        failures=tick.failures + 1, detail=detail[:_MAX_DETAIL]
    )


def skipped(tick: Tick, moment: Moment, reason: TickReason, detail: str) -> Tick:
    """The tick that is not to become one."""
    return _ended(tick, moment, TickState.SKIPPED, reason, detail)


def makes_way(schedule: Schedule, tick: Tick, busy: Mapping[str, str]) -> bool:
    """Whether it does not fire for the sake of a run of its schedule; `busy` are the schedules that have one."""
    return schedule.overlap is Overlap.SKIP and not tick.by_hand and schedule.schedule_id in busy


def skipped_for_run(tick: Tick, moment: Moment, run_id: str) -> Tick:
    """The tick that does not fire because that run has not ended."""
    return skipped(tick, moment, TickReason.STILL_RUNNING, f"run {run_id} of its schedule had not ended")


def settled(schedule: Schedule, tick: Tick) -> Settled:
    """What became of the tick, for logs and metrics."""
    return Settled(
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


def tick_view(tick: Tick, run_state: RunState | None) -> TickView:
    """The tick as readers see it."""
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
        run_state=run_state,
        commit_sha=tick.commit_sha,
    )


def schedule_view(schedule: Schedule, last: TickView | None) -> ScheduleView:
    """The schedule as readers see it."""
    return ScheduleView(
        schedule_id=schedule.schedule_id,
        name=schedule.name,
        repo_url=schedule.repo_url,
        repo_full_name=schedule.repo_full_name,
        branch=schedule.branch,
        cron=schedule.cron,
        timezone=schedule.timezone,
        missed=schedule.missed,
        overlap=schedule.overlap,
        workflow_path=schedule.workflow_path,
        workflow_job_id=schedule.workflow_job_id,
        runs_on=schedule.runs_on,
        priority=None if schedule.priority is None else Priority(schedule.priority),
        paused=schedule.paused,
        created_by=schedule.created_by,
        created_at=schedule.created_at,
        changed_at=schedule.changed_at,
        next_at=schedule.next_at,
        last=last,
    )


def _timing(cron: str, zone: str) -> Timing:
    # Who may have ticks within a minute is for the entrance to say.
    return timing(cron, zone, seconds=True)


def _from_now_on(schedule: Schedule, now: float) -> Schedule:
    return schedule._replace(considered_at=now, next_at=_timing(schedule.cron, schedule.timezone).after(now))


def _unreadable(moment: Moment, schedule: Schedule, why: str) -> Progress:
    """What was read once may be unknown to this machine: a zone that its database lacks. Others go on meanwhile."""
    tick_at = moment.now if schedule.next_at is None else schedule.next_at
    tick = _due(moment, schedule, tick_at, TickReason.ON_TIME)
    failed = _ended(tick, moment, TickState.FAILED, TickReason.NOT_A_REQUEST, why)
    return Progress(
        schedule._replace(considered_at=moment.now, next_at=moment.now + UNREADABLE_SECONDS), [failed]
    )


def _missed(moment: Moment, schedule: Schedule, gap: Gap) -> Tick:
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
    asked = reason is TickReason.BY_HAND
    return Tick(
        tick_id=_tick_id(schedule, tick_at, *(["by hand"] if asked else [])),
        schedule_id=schedule.schedule_id,
        tick_at=tick_at,
        first_at=None,
        ticks=1,
        by_hand=asked,
        state=TickState.DUE,
        reason=reason,
        retry_at=moment.now,
    )


def _tick_id(schedule: Schedule, tick_at: float, *more: str) -> str:
    """The same for the same tick, so that it has one row whoever writes it."""
    return derive_request_id(EVENT, schedule.schedule_id, format_seconds(tick_at), *more)


def _ended(tick: Tick, moment: Moment, state: TickState, reason: TickReason, detail: str) -> Tick:
    return tick._replace(
        state=state,
        reason=reason,
        detail=detail[:_MAX_DETAIL],
        lease_until=None,
        retry_at=None,
        settled_at=moment.now,
    )
