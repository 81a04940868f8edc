"""Schedules and their ticks in the PostgreSQL store; it keeps the promises of `ScheduleStore`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar

from solstice_common.messages import JobRequestV1
from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_orchestrator.store.decisions.schedule import Decide, ScheduleUpdate
from solstice_orchestrator.store.decisions.tick import DecideClaim, DecideTick, fired
from solstice_orchestrator.store.postgresql import admit
from solstice_orchestrator.store.postgresql.tables import schedule_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
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

T = TypeVar("T")

CHANNEL: Final = "solstice_schedules"


class _Perform(Protocol):
    """Carries out work in a transaction of the store."""

    def __call__(self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]) -> Awaitable[T]: ...


class PostgreSQLScheduleStore(ScheduleOperations):
    """The schedule store of a `PostgreSQLStore`, with that store's transactions and clock."""

    def __init__(self, database: PostgreSQLDatabase, write: _Perform, read: _Perform) -> None:
        self._database = database
        self._write = write
        self._read = read

    async def schedules(
        self, *, limit: int, after: str | None = None, filters: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        async def work(transaction: PostgreSQLTransaction) -> Sequence[ScheduleView]:
            return await schedule_table.list_schedules(
                transaction.connection, filters or {}, after=after, limit=limit
            )

        return await self._read(work)

    async def schedule(self, which: str) -> ScheduleView | None:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView | None:
            schedule = await schedule_table.find_schedule(transaction.connection, which)
            return (
                None
                if schedule is None
                else await schedule_table.view_schedule(transaction.connection, schedule)
            )

        return await self._read(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        async def work(transaction: PostgreSQLTransaction) -> Sequence[TickView]:
            return await schedule_table.newest_ticks(transaction.connection, schedule_id, limit)

        return await self._read(work)

    async def now(self) -> float:
        return await self._read(PostgreSQLTransaction.now)

    async def remove(self, which: str) -> bool:
        async def work(transaction: PostgreSQLTransaction) -> bool:
            schedule = await schedule_table.find_schedule(transaction.connection, which, lock=True)
            if schedule is None:
                return False
            await schedule_table.remove_schedule(transaction.connection, schedule)
            return True

        return await self._change(work)

    async def pause_seconds(self) -> float | None:
        async def work(transaction: PostgreSQLTransaction) -> float | None:
            at = await schedule_table.next_at(transaction.connection)
            return None if at is None else max(0.0, at - await transaction.now())

        return await self._read(work)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)

    async def _add(self, decide: Callable[[Moment], ScheduleUpdate]) -> ScheduleView:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView:
            return await schedule_table.update_schedule(
                transaction.connection, decide(await _moment(transaction))
            )

        return await self._change(work)

    async def _steer(self, which: str, decide: Decide) -> ScheduleView | None:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView | None:
            schedule = await schedule_table.find_schedule(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            moment = await _moment(transaction)
            pending = await schedule_table.pending_of(transaction.connection, schedule)
            return await schedule_table.update_schedule(
                transaction.connection, decide(moment, schedule, pending)
            )

        return await self._change(work)

    async def _claim(self, limit: int, progress: Decide, take: DecideClaim) -> ClaimedTicks:
        async def work(transaction: PostgreSQLTransaction) -> ClaimedTicks:
            connection, moment = transaction.connection, await _moment(transaction)
            overdue = await schedule_table.overdue_schedules(connection, moment.now, limit)
            settled: list[SettledTick] = []
            for schedule in overdue:
                pending = await schedule_table.pending_of(connection, schedule)
                settled += await schedule_table.write_update(connection, progress(moment, schedule, pending))
            due = await schedule_table.due_ticks(connection, moment.now, limit)
            busy = await schedule_table.schedules_with_runs(
                connection, [schedule.schedule_id for schedule, _ in due]
            )
            claimed_rows = [(schedule, take(moment, schedule, tick, busy)) for schedule, tick in due]
            for _, tick in claimed_rows:
                await schedule_table.record_tick(connection, tick)
            return claimed_ticks(claimed_rows, settled, more=limit in {len(overdue), len(due)})

        claimed = await self._write(work)
        if claimed.tasks or claimed.settled:
            self._database.notify(CHANNEL)
        return claimed

    async def _settle(self, task: TickTask, decide: DecideTick) -> SettledTick | None:
        async def work(transaction: PostgreSQLTransaction) -> SettledTick | None:
            row = await schedule_table.tick_of_task(transaction.connection, task)
            if row is None:
                return None
            (schedule, tick), moment = row, await _moment(transaction)
            new = decide(moment, schedule, tick)
            if isinstance(new, JobRequestV1):
                (admission,) = await admit.admit(transaction, [new], [new.encode()])
                new = fired(tick, moment, admission.run_id, new.commit_sha)
            if new is None:
                return None
            await schedule_table.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        return await self._change(work)

    async def _change(self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]) -> T:
        result = await self._write(work)
        self._database.notify(CHANNEL)
        return result


async def _moment(transaction: PostgreSQLTransaction) -> Moment:
    return Moment(await transaction.now(), transaction.rules)
