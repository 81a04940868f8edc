"""Changes schedules, written once for all stores, which only load and write.

Each operation is one decision on the rows of one schedule, in one transaction of the store.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.store.decisions import schedule as schedule_changes
from solstice_orchestrator.store.decisions import tick as tick_changes
from solstice_orchestrator.store.decisions.schedule import NameTaken, ScheduleUpdate
from solstice_orchestrator.store.decisions.tick import DecideClaim, DecideTick
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.schedule_store import (
    ClaimedTicks,
    NotScheduled,
    ScheduleChanges,
    ScheduleSpec,
    ScheduleView,
    SettledTick,
    TickTask,
)


class ScheduleOperations(ABC):
    """The changing part of `ScheduleStore`; a store adds how it loads and writes."""

    @abstractmethod
    async def _add(self, decide: Callable[[Moment], ScheduleUpdate]) -> ScheduleView:
        """Write a new schedule, and return it. Raises NameTaken."""

    @abstractmethod
    async def _steer(self, which: str, decide: schedule_changes.Decide) -> ScheduleView | None:
        """Load a schedule, write what is decided, and return the schedule. Raises NameTaken."""

    @abstractmethod
    async def _claim(self, limit: int, progress: schedule_changes.Decide, take: DecideClaim) -> ClaimedTicks:
        """Load overdue schedules and write their progress.

        Then load due ticks, and write which are taken. A store writes out this order itself: what it decides comes from
        `progress` and `take`, and the rest is its loading and writing, with or without `await`.
        """

    @abstractmethod
    async def _settle(self, task: TickTask, decide: DecideTick) -> SettledTick | None:
        """Load a tick with its schedule, and write what is decided.

        A request is admitted first.
        """

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        try:
            return await self._add(lambda moment: schedule_changes.added(moment, spec, created_by))
        except NameTaken:
            return NotScheduled.NAME_TAKEN

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        try:
            return await self._steer(
                which,
                lambda moment, schedule, pending: schedule_changes.edited(moment, schedule, pending, changes),
            )
        except NameTaken:
            return NotScheduled.NAME_TAKEN

    async def pause(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.paused)

    async def resume(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.resumed)

    async def fire(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.by_hand)

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        return await self._claim(
            limit,
            schedule_changes.progressed,
            lambda moment, schedule, tick, busy: tick_changes.claimed(
                moment, worker_id, schedule, tick, busy
            ),
        )

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        return await self._settle(
            task,
            lambda moment, schedule, tick: tick_changes.request_or_tick(
                moment, schedule, tick, task, commit_sha
            ),
        )

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        return await self._settle(
            task,
            lambda moment, _, tick: (
                tick_changes.not_fired(tick, moment, reason, detail, retry=retry)
                if tick_changes.is_claimed(tick, task)
                else None
            ),
        )

    async def release(self, task: TickTask) -> None:
        await self._settle(
            task,
            lambda moment, _, tick: (
                tick_changes.released(tick, moment.now) if tick_changes.is_claimed(tick, task) else None
            ),
        )
