"""Schedules and their ticks in the PostgreSQL store; it keeps the promises of `ScheduleStore`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar

import asyncpg

from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.store.decisions import schedule as schedule_changes
from solstice_orchestrator.store.decisions import tick as tick_changes
from solstice_orchestrator.store.decisions.schedule import Decide, ScheduleUpdate
from solstice_orchestrator.store.postgresql import admit
from solstice_orchestrator.store.postgresql.tables import schedules
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.schedule_rows import Schedule, Tick, claimed_ticks, settled_of
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

T = TypeVar("T")

CHANNEL: Final = "solstice_schedules"


class _Perform(Protocol):
    """Carries out work in a transaction of the store."""

    def __call__(self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]) -> Awaitable[T]: ...


class PostgreSQLScheduleStore:
    """The schedule store of a `PostgreSQLStore`, with that store's transactions and clock."""

    def __init__(self, database: PostgreSQLDatabase, write: _Perform, look: _Perform) -> None:
        self._database = database
        self._write = write
        self._look = look

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView:
            added = schedule_changes.added(await _moment(transaction), spec, created_by)
            return await schedules.update_schedule(transaction.connection, added)

        try:
            return await self._change(work)
        except asyncpg.UniqueViolationError:
            return NotScheduled.NAME_TAKEN

    async def schedules(
        self, *, limit: int, after: str | None = None, wanted: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        async def work(transaction: PostgreSQLTransaction) -> Sequence[ScheduleView]:
            return await schedules.list_schedules(
                transaction.connection, wanted or {}, after=after, limit=limit
            )

        return await self._look(work)

    async def schedule(self, which: str) -> ScheduleView | None:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView | None:
            schedule = await schedules.find_schedule(transaction.connection, which)
            return (
                None if schedule is None else await schedules.view_schedule(transaction.connection, schedule)
            )

        return await self._look(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        async def work(transaction: PostgreSQLTransaction) -> Sequence[TickView]:
            return await schedules.newest_ticks(transaction.connection, schedule_id, limit)

        return await self._look(work)

    async def now(self) -> float:
        return await self._look(PostgreSQLTransaction.now)

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        def decide(moment: Moment, schedule: Schedule, pending: Tick | None) -> ScheduleUpdate:
            return schedule_changes.edited(moment, schedule, pending, changes)

        try:
            return await self._steer(which, decide)
        except asyncpg.UniqueViolationError:
            return NotScheduled.NAME_TAKEN

    async def pause(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.paused)

    async def resume(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.resumed)

    async def remove(self, which: str) -> bool:
        async def work(transaction: PostgreSQLTransaction) -> bool:
            schedule = await schedules.find_schedule(transaction.connection, which, lock=True)
            if schedule is None:
                return False
            await schedules.remove_schedule(transaction.connection, schedule)
            return True

        return await self._change(work)

    async def fire(self, which: str) -> ScheduleView | None:
        return await self._steer(which, schedule_changes.by_hand)

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        claimed = await self._write(lambda transaction: _claim(transaction, worker_id, limit))
        if claimed.tasks or claimed.settled:
            self._database.notify(CHANNEL)
        return claimed

    async def fired(self, task: TickTask, commit_sha: str) -> SettledTick | None:
        async def work(transaction: PostgreSQLTransaction) -> SettledTick | None:
            found = await schedules.tick_of_task(transaction.connection, task)
            if found is None:
                return None
            schedule, tick = found
            moment = await _moment(transaction)
            match tick_changes.firing(moment, schedule, tick, task, commit_sha):
                case None:
                    return None
                case Tick() as new:
                    pass
                case request:
                    (admission,) = await admit.admit(transaction, [request], [request.encode()])
                    new = tick_changes.fired(tick, moment, admission.run_id, commit_sha)
            await schedules.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        return await self._change(work)

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, retry: bool
    ) -> SettledTick | None:
        async def work(transaction: PostgreSQLTransaction) -> SettledTick | None:
            held = await schedules.claimed_tick(transaction.connection, task)
            if held is None:
                return None
            schedule, tick = held
            new = tick_changes.not_fired(tick, await _moment(transaction), reason, detail, retry=retry)
            await schedules.record_tick(transaction.connection, new)
            return settled_of(schedule, new)

        return await self._change(work)

    async def release(self, task: TickTask) -> None:
        async def work(transaction: PostgreSQLTransaction) -> None:
            held = await schedules.claimed_tick(transaction.connection, task)
            if held is not None:
                released = tick_changes.released(held[1], await transaction.now())
                await schedules.record_tick(transaction.connection, released)

        await self._change(work)

    async def pause_seconds(self) -> float | None:
        async def work(transaction: PostgreSQLTransaction) -> float | None:
            at = await schedules.next_at(transaction.connection)
            return None if at is None else max(0.0, at - await transaction.now())

        return await self._look(work)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)

    async def _steer(self, which: str, decide: Decide) -> ScheduleView | None:
        async def work(transaction: PostgreSQLTransaction) -> ScheduleView | None:
            schedule = await schedules.find_schedule(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            moment = await _moment(transaction)
            pending = await schedules.pending_of(transaction.connection, schedule)
            return await schedules.update_schedule(transaction.connection, decide(moment, schedule, pending))

        return await self._change(work)

    async def _change(self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]) -> T:
        result = await self._write(work)
        self._database.notify(CHANNEL)
        return result


async def _claim(transaction: PostgreSQLTransaction, worker_id: str, limit: int) -> ClaimedTicks:
    connection, moment = transaction.connection, await _moment(transaction)
    overdue = await schedules.overdue_schedules(connection, moment.now, limit)
    settled: list[SettledTick] = []
    for schedule in overdue:
        pending = await schedules.pending_of(connection, schedule)
        settled += await schedules.write_update(
            connection, schedule_changes.progressed(moment, schedule, pending)
        )
    due = await schedules.due_ticks(connection, moment.now, limit)
    busy = await schedules.schedules_with_runs(connection, [schedule.schedule_id for schedule, _ in due])
    taken = [
        (schedule, tick_changes.claimed(moment, worker_id, schedule, tick, busy)) for schedule, tick in due
    ]
    for _, tick in taken:
        await schedules.record_tick(connection, tick)
    return claimed_ticks(taken, settled, more=limit in {len(overdue), len(due)})


async def _moment(transaction: PostgreSQLTransaction) -> Moment:
    return Moment(await transaction.now(), transaction.rules)
