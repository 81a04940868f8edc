"""Schedules and their ticks in the SQLite store; it keeps the promises of `ScheduleStore`."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.store.decisions.schedule import Decide, ScheduleUpdate
from solstice_orchestrator.store.decisions.tick import DecideClaim, DecideTick, fired
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.schedule_rows import claimed_ticks, settled_of
from solstice_orchestrator.store.schedule_operations import ScheduleOperations
from solstice_orchestrator.store.schedule_store import (
    ClaimedTicks,
    ScheduleFilters,
    ScheduleView,
    SettledTick,
    TickTask,
    TickView,
)
from solstice_orchestrator.store.sqlite import admit
from solstice_orchestrator.store.sqlite.notifier import StoreNotifier
from solstice_orchestrator.store.sqlite.tables import schedule_table
from solstice_orchestrator.store.sqlite.tables.transaction import SqliteTransaction

T = TypeVar("T")


class _Write(Protocol):
    """Carries out work as one transaction of the store.

    `quiet` does not notify those who wait for runs and jobs.
    """

    def __call__(self, work: Callable[[SqliteTransaction], T], *, quiet: bool = False) -> Awaitable[T]: ...


class _Read(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]: ...


class SqliteScheduleStore(ScheduleOperations):
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

    async def schedules(
        self, *, limit: int, after: str | None = None, filters: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        return await self._read(
            lambda connection: schedule_table.list_schedules(
                connection, filters or {}, after=after, limit=limit
            )
        )

    async def schedule(self, which: str) -> ScheduleView | None:
        def work(connection: sqlite3.Connection) -> ScheduleView | None:
            schedule = schedule_table.find_schedule(connection, which)
            return None if schedule is None else schedule_table.view_schedule(connection, schedule)

        return await self._read(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        return await self._read(
            lambda connection: schedule_table.newest_ticks(connection, schedule_id, limit)
        )

    async def now(self) -> float:
        return self._moment().now

    async def remove(self, which: str) -> bool:
        def work(transaction: SqliteTransaction) -> bool:
            schedule = schedule_table.find_schedule(transaction.connection, which)
            if schedule is None:
                return False
            schedule_table.remove_schedule(transaction.connection, schedule)
            return True

        return await self._change(work)

    async def pause_seconds(self) -> float | None:
        at = await self._read(schedule_table.next_at)
        return None if at is None else max(0.0, at - self._moment().now)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._notifier.listen()

    async def _add(self, decide: Callable[[Moment], ScheduleUpdate]) -> ScheduleView:
        def work(transaction: SqliteTransaction) -> ScheduleView:
            return schedule_table.update_schedule(transaction.connection, decide(transaction.moment))

        return await self._change(work)

    async def _steer(self, which: str, decide: Decide) -> ScheduleView | None:
        def work(transaction: SqliteTransaction) -> ScheduleView | None:
            schedule = schedule_table.find_schedule(transaction.connection, which)
            if schedule is None:
                return None
            pending = schedule_table.pending_of(transaction.connection, schedule)
            update = decide(transaction.moment, schedule, pending)
            return schedule_table.update_schedule(transaction.connection, update)

        return await self._change(work)

    async def _claim(self, limit: int, progress: Decide, take: DecideClaim) -> ClaimedTicks:
        def work(transaction: SqliteTransaction) -> ClaimedTicks:
            connection, moment = transaction.connection, transaction.moment
            overdue = schedule_table.overdue_schedules(connection, moment.now, limit)
            settled: list[SettledTick] = []
            for schedule in overdue:
                pending = schedule_table.pending_of(connection, schedule)
                settled += schedule_table.write_update(connection, progress(moment, schedule, pending))
            due = schedule_table.due_ticks(connection, moment.now, limit)
            busy = schedule_table.schedules_with_runs(
                connection, [schedule.schedule_id for schedule, _ in due]
            )
            claimed_rows = [(schedule, take(moment, schedule, tick, busy)) for schedule, tick in due]
            for _, tick in claimed_rows:
                schedule_table.record_tick(connection, tick)
            return claimed_ticks(claimed_rows, settled, more=limit in {len(overdue), len(due)})

        claimed = await self._write(work, quiet=True)
        if claimed.tasks or claimed.settled:
            self._notifier.notify()
        return claimed

    async def _settle(self, task: TickTask, decide: DecideTick) -> SettledTick | None:
        def work(transaction: SqliteTransaction) -> SettledTick | None:
            row = schedule_table.tick_of_task(transaction.connection, task)
            if row is None:
                return None
            (schedule, tick), moment = row, transaction.moment
            new = decide(moment, schedule, tick)
            if isinstance(new, JobRequestV1):
                (admission,) = admit.admit(transaction, [new], [new.encode()])
                new = fired(tick, moment, admission.run_id, new.commit_sha)
            if new is None:
                return None
            schedule_table.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        settled = await self._write(work)
        self._notifier.notify()
        return settled

    async def _change(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Change only schedules: listeners for runs and jobs are not notified."""
        result = await self._write(work, quiet=True)
        self._notifier.notify()
        return result
