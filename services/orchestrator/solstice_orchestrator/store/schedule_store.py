"""The store's promises about schedules: every tick is recorded and fired once.

It does not matter which process fires it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypedDict

from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.messages.states import RunState
from solstice_orchestrator.schedules.ticks import TickReason, TickState


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """What to build regularly; `cron.timing` has read `cron` and `timezone`."""

    name: str
    repo_url: str
    branch: str
    """A branch without `refs/heads/`, or the full name of another ref."""
    cron: str
    timezone: str = "UTC"
    repo_full_name: str | None = None
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.QUEUE
    workflow_path: str | None = None
    workflow_job_id: str | None = None
    runs_on: str | None = None
    priority: Priority | None = None


class ScheduleChanges(TypedDict, total=False):
    """The fields of a ScheduleSpec that are to change."""

    name: str
    repo_url: str
    branch: str
    cron: str
    timezone: str
    repo_full_name: str | None
    missed: Missed
    overlap: Overlap
    workflow_path: str | None
    workflow_job_id: str | None
    runs_on: str | None
    priority: Priority | None


class ScheduleFilters(TypedDict, total=False):
    """Which schedules to list."""

    repository: str | None
    """The repository's full name or URL."""
    ref: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickView:
    """The result of a tick, or of several missed ticks in a row."""

    tick_at: float
    """When the tick was due, even if it was noticed later; of several, the last."""
    first_at: float | None
    """When the first of several ticks was due."""
    count: int
    """How many ticks it represents; 1000 means at least 1000."""
    by_hand: bool
    state: TickState
    reason: TickReason
    detail: str
    failures: int
    """How often asking the forge failed."""
    retry_at: float | None
    """The earliest next try of a tick that is due."""
    settled_at: float | None
    run_id: str | None
    run_state: RunState | None
    """None also when the run has been removed."""
    commit_sha: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule as readers see it."""

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
    """The name of the token that created it."""
    created_at: float
    changed_at: float
    next_at: float | None
    """None while it is paused."""
    last: TickView | None
    """The newest tick."""


class NotScheduled(StrEnum):
    """Why a schedule could not be stored as requested."""

    NAME_TAKEN = "name_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTask:
    """A tick claimed to be fired; `attempt` fences, as for jobs."""

    tick_id: str
    attempt: int
    schedule_id: str
    schedule: str
    """The schedule's name."""
    repo_url: str
    ref: str
    """The ref's full name."""
    tick_at: float
    by_hand: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTick:
    """The result of a schedule's tick, for logs and metrics."""

    schedule_id: str
    schedule: str
    tick_at: float
    state: TickState
    reason: TickReason
    detail: str = ""
    count: int = 1
    late_seconds: float = 0.0
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTicks:
    """The ticks to fire, and those that were settled without firing."""

    tasks: Sequence[TickTask] = ()
    settled: Sequence[SettledTick] = field(default_factory=tuple)
    more: bool = False
    """Whether more ticks may be due now."""


class ScheduleStore(Protocol):
    """The part of `JobStore` for schedules; an id or a name identifies a schedule.

    * The store's clock alone decides what is due. Every tick that comes while its schedule is not paused is one row, or
      part of the one row for several missed ticks, however many processes look and however often: it fires once, or the
      row says why it did not.
    * A tick fires in the transaction that admits its request.
    """

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        """Add a schedule; its first tick is the first after this moment."""
        ...

    async def schedules(
        self, *, limit: int, after: str | None = None, filters: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        """Return schedules in the order in which they were added, after the id `after`."""
        ...

    async def schedule(self, which: str) -> ScheduleView | None: ...

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        """Return the results of its ticks, newest first; the store keeps REMEMBERED_TICKS."""
        ...

    async def now(self) -> float:
        """Return the time of the store's clock."""
        ...

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        """Change the schedule.

        With another time or zone its next tick is the first after this moment.
        """
        ...

    async def pause(self, which: str) -> ScheduleView | None:
        """Stop the ticks until `resume`; a tick that is due does not fire.

        Ticks that come while it is paused do not count as missed.
        """
        ...

    async def resume(self, which: str) -> ScheduleView | None:
        """Start the ticks again: the next is the first after this moment."""
        ...

    async def remove(self, which: str) -> bool:
        """Remove the schedule and its ticks; its runs stay. False when it does not exist."""
        ...

    async def fire(self, which: str) -> ScheduleView | None:
        """Add one tick now, even when the schedule is paused or a run is unfinished.

        It is tried once.
        """
        ...

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        """Record the ticks that have come, and claim those that are due, under a lease."""
        ...

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        """Admit a run of this commit, which exists when this returns.

        Safe to repeat. None when fenced.
        """
        ...

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        """Record that the tick could not be fired. None when fenced.

        With `retry` it is tried again after a backoff, unless it was made by hand.
        """
        ...

    async def release(self, task: TickTask) -> None:
        """Release the tick at once, so that another worker can fire it."""
        ...

    async def pause_seconds(self) -> float | None:
        """Return the seconds until there is something to claim.

        0 when there is something now, None when no tick will come.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """As `JobStore.changes`, for schedules and their ticks alone."""
        ...
