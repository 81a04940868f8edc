"""What the store promises about schedules: what is asked for regularly, and every tick once, whoever is there to fire it."""

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
    """What a person wants to be built regularly; `cron.timing` has read `cron` and `timezone`."""

    name: str
    repo_url: str
    branch: str
    """Without `refs/heads/`; of another ref, its full name."""
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
    """What of a ScheduleSpec is to be otherwise."""

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
    """Its full name or URL."""
    ref: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickView:
    """What became of a tick, or of several in a row that were missed."""

    tick_at: float
    """When it was due, whenever that was noticed; of several the last."""
    first_at: float | None
    """Of several, the first."""
    count: int
    """How many it stands for; at least so many when it is 1000."""
    by_hand: bool
    state: TickState
    reason: TickReason
    detail: str
    failures: int
    """How often the forge could not be asked."""
    retry_at: float | None
    """Of one that is due: not before this moment."""
    settled_at: float | None
    run_id: str | None
    run_state: RunState | None
    """None as well when the run has been removed."""
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
    """The name of the token that asked for it."""
    created_at: float
    changed_at: float
    next_at: float | None
    """None while it is paused."""
    last: TickView | None
    """The newest tick."""


class NotScheduled(StrEnum):
    """Why a schedule is not as it was asked for."""

    NAME_TAKEN = "name_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTask:
    """A tick that is ours to fire; `attempt` fences, as for jobs."""

    tick_id: str
    attempt: int
    schedule_id: str
    schedule: str
    """Its name."""
    repo_url: str
    ref: str
    """In full."""
    tick_at: float
    by_hand: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTick:
    """What became of a tick of a schedule, for logs and metrics."""

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
    """What is to be fired, and what has been settled without that."""

    tasks: Sequence[TickTask] = ()
    settled: Sequence[SettledTick] = field(default_factory=tuple)
    more: bool = False
    """Whether there may be more at this moment."""


class ScheduleStore(Protocol):
    """Part of `JobStore`, and under its promises; a schedule is named by its id or by its name.

    * The store's clock alone decides what is due. Every tick that comes while its schedule is not paused is one row, or
      part of the one row for several that were missed, whoever looks and however often: it fires once, or it is
      recorded why it did not.
    * A tick fires in the transaction that admits its request.
    """

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        """A new schedule; its first tick is the first after this moment."""
        ...

    async def schedules(
        self, *, limit: int, after: str | None = None, wanted: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        """In the order in which they were added, behind the one with the id `after`."""
        ...

    async def schedule(self, which: str) -> ScheduleView | None: ...

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        """What became of its ticks, newest first; KEPT_TICKS are kept."""
        ...

    async def now(self) -> float:
        """The store's clock."""
        ...

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        """Make it otherwise; with another time or zone its next tick is the first after this moment."""
        ...

    async def pause(self, which: str) -> ScheduleView | None:
        """No ticks until it is resumed: those that come meanwhile are not missed. One that is due does not fire."""
        ...

    async def resume(self, which: str) -> ScheduleView | None:
        """Its next tick is the first after this moment."""
        ...

    async def remove(self, which: str) -> bool:
        """Forget it with its ticks; its runs stay. False when there was none."""
        ...

    async def fire(self, which: str) -> ScheduleView | None:
        """One tick at this moment, whatever else there is, also when it is paused. It is tried once."""
        ...

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        """Record the ticks that have come, and take those that are due, under a lease."""
        ...

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        """Ask for this commit: the run exists when this returns. Safe to repeat. None when fenced."""
        ...

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        """It could not be fired. `retry`: after a backoff, unless it was asked for by hand. None when fenced."""
        ...

    async def release(self, task: TickTask) -> None:
        """Let somebody else fire it, at once."""
        ...

    async def pause_seconds(self) -> float | None:
        """In how many seconds there is something to claim: 0 when there is now, None when nothing is to come."""
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """As `JobStore.changes`, for schedules and their ticks alone."""
        ...
