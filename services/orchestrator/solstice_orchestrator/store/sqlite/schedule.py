"""Schedules and their ticks in the SQLite store; it keeps the promises of `ScheduleStore`."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.store.decisions import schedule as schedule_changes
from solstice_orchestrator.store.decisions import tick as tick_changes
from solstice_orchestrator.store.decisions.schedule import Decide
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.schedule_rows import Tick, claimed_ticks, settled_of
from solstice_orchestrator.store.schedule_store import (
    ClaimedTicks,
    NotScheduled,
    ScheduleChanges,
    ScheduleFilters,
    ScheduleSpec,
    ScheduleView,
    SettledTick,
    TickTask,
    TickView,
)
from solstice_orchestrator.store.sqlite import admit
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from solstice_orchestrator.store.sqlite.tables import schedules
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

T = TypeVar("T")


class _Write(Protocol):
    """Carries out work as one transaction of the store.

    `quiet` does not notify those who wait for runs and jobs.
    """

    def __call__(self, work: Callable[[SqliteTransaction], T], *, quiet: bool = False) -> Awaitable[T]: ...


class _Read(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]: ...


class SqliteScheduleStore:
    """The schedule store of a `SqliteStore`, with that store's transactions and clock."""

    def __init__(
        self, write: _Write, read: _Read, moment: Callable[[], Moment], notifier: StoreNotifier
    ) -> None:
        self._write = write
        self._read = read
        self._moment = moment
        self._notifier = notifier

    def close(self) -> None:
        """Send the notification that was still pending."""
        self._notifier.close()

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        def work(transaction: SqliteTransaction) -> ScheduleView | NotScheduled:
            if schedules.find_schedule(transaction.connection, spec.name) is not None:
                return NotScheduled.NAME_TAKEN
            return schedules.update_schedule(
                transaction.connection, schedule_changes.added(transaction.moment, spec, created_by)
            )

        return await self._change(work)

    async def schedules(
        self, *, limit: int, after: str | None = None, wanted: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        return await self._read(
            lambda connection: schedules.list_schedules(connection, wanted or {}, after=after, limit=limit)
        )

    async def schedule(self, which: str) -> ScheduleView | None:
        def work(connection: sqlite3.Connection) -> ScheduleView | None:
            schedule = schedules.find_schedule(connection, which)
            return None if schedule is None else schedules.view_schedule(connection, schedule)

        return await self._read(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        return await self._read(lambda connection: schedules.newest_ticks(connection, schedule_id, limit))

    async def now(self) -> float:
        return self._moment().now

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        def work(transaction: SqliteTransaction) -> ScheduleView | NotScheduled | None:
            schedule = schedules.find_schedule(transaction.connection, which)
            if schedule is None:
                return None
            named = schedules.find_schedule(transaction.connection, changes.get("name", schedule.name))
            if named is not None and named.schedule_id != schedule.schedule_id:
                return NotScheduled.NAME_TAKEN
            pending = schedules.pending_of(transaction.connection, schedule)
            edited = schedule_changes.edited(transaction.moment, schedule, pending, changes)
            return schedules.update_schedule(transaction.connection, edited)

        return await self._change(work)

    async def pause(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.paused)

    async def resume(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.resumed)

    async def remove(self, which: str) -> bool:
        def work(transaction: SqliteTransaction) -> bool:
            schedule = schedules.find_schedule(transaction.connection, which)
            if schedule is None:
                return False
            schedules.remove_schedule(transaction.connection, schedule)
            return True

        return await self._change(work)

    async def fire(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.by_hand)

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        claimed = await self._write(lambda transaction: _claim(transaction, worker_id, limit), quiet=True)
        if claimed.tasks or claimed.settled:
            self._notifier.notify()
        return claimed

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        def work(transaction: SqliteTransaction) -> SettledTick | None:
            found = schedules.tick_of_task(transaction.connection, task)
            if found is None:
                return None
            schedule, tick = found
            match tick_changes.firing(transaction.moment, schedule, tick, task, commit_sha):
                case None:
                    return None
                case Tick() as new:
                    pass
                case request:
                    (admission,) = admit.admit(transaction, [request], [request.encode()])
                    new = tick_changes.fired(tick, transaction.moment, admission.run_id, commit_sha)
            schedules.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        settled = await self._write(work)
        self._notifier.notify()
        return settled

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        def work(transaction: SqliteTransaction) -> SettledTick | None:
            held = schedules.claimed_tick(transaction.connection, task)
            if held is None:
                return None
            schedule, tick = held
            new = tick_changes.not_fired(tick, transaction.moment, reason, detail, retry=retry)
            schedules.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        return await self._change(work)

    async def release(self, task: TickTask) -> None:
        def work(transaction: SqliteTransaction) -> None:
            held = schedules.claimed_tick(transaction.connection, task)
            if held is not None:
                schedules.record_tick(transaction.connection, tick_changes.released(held[1], transaction.now))

        await self._change(work)

    async def pause_seconds(self) -> float | None:
        at = await self._read(schedules.next_at)
        return None if at is None else max(0.0, at - self._moment().now)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._notifier.listen()

    async def _steer(self, which: str, decide: Decide) -> ScheduleView | None:
        def work(transaction: SqliteTransaction) -> ScheduleView | None:
            schedule = schedules.find_schedule(transaction.connection, which)
            if schedule is None:
                return None
            pending = schedules.pending_of(transaction.connection, schedule)
            return schedules.update_schedule(
                transaction.connection, decide(transaction.moment, schedule, pending)
            )

        return await self._change(work)

    async def _change(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Change only schedules: listeners for runs and jobs are not notified."""
        result = await self._write(work, quiet=True)
        self._notifier.notify()
        return result


def _claim(transaction: SqliteTransaction, worker_id: str, limit: int) -> ClaimedTicks:
    connection, moment = transaction.connection, transaction.moment
    overdue = schedules.overdue_schedules(connection, moment.now, limit)
    settled: list[SettledTick] = []
    for schedule in overdue:
        pending = schedules.pending_of(connection, schedule)
        settled += schedules.write_update(connection, schedule_changes.progressed(moment, schedule, pending))
    due = schedules.due_ticks(connection, moment.now, limit)
    busy = schedules.schedules_with_runs(connection, [schedule.schedule_id for schedule, _ in due])
    taken = [
        (schedule, tick_changes.claimed(moment, worker_id, schedule, tick, busy)) for schedule, tick in due
    ]
    for _, tick in taken:
        schedules.record_tick(connection, tick)
    return claimed_ticks(taken, settled, more=limit in {len(overdue), len(due)})
