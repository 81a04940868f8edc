"""Schedules and their ticks in the PostgreSQL store; it keeps the promises of `Timetable`.

Locks are taken in one order: a schedule, its ticks, and then what admitting its request takes. Who claims waits for
nobody's schedule or tick.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import asyncpg

from solstice_common.errors import InvalidMessage
from solstice_common.postgresql import Database
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.store import schedule_rows
from solstice_orchestrator.store.moment import Moment
from solstice_orchestrator.store.postgresql import intake
from solstice_orchestrator.store.postgresql.transaction import Transaction
from solstice_orchestrator.store.schedule_rows import Schedule, Tick, full_ref, schedule_view, tick_view
from solstice_orchestrator.store.timetable import (
    ClaimedTicks,
    NotScheduled,
    ScheduleChanges,
    ScheduleFilters,
    ScheduleSpec,
    ScheduleView,
    Settled,
    TickTask,
    TickView,
)
from solstice_orchestrator.ticks import KEPT_TICKS, Missed, Overlap, TickReason, TickState

if TYPE_CHECKING:
    from solstice_common.postgresql import Connection

T = TypeVar("T")

CHANNEL: Final = "solstice_schedules"
SCHEDULE: Final = ", ".join(f"schedules.{name}" for name in Schedule._fields)
TICK: Final = ", ".join(f"ticks.{name}" for name in Tick._fields)
_WIDTH: Final = len(Tick._fields)
_NEWEST: Final = (
    f"SELECT {TICK}, runs.state AS run_state FROM ticks LEFT JOIN runs USING (run_id)"  # noqa: S608  made of constants
    " WHERE schedule_id = $1 ORDER BY tick_at DESC, tick_id LIMIT $2"
)
_KEEP: Final = (
    f"INSERT INTO schedules ({', '.join(Schedule._fields)})"  # noqa: S608  made of constants
    f" VALUES ({', '.join(f'${number}' for number in range(1, len(Schedule._fields) + 1))})"
    f" ON CONFLICT (schedule_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in Schedule._fields[1:])}"
)
_INSERT: Final = (
    f"INSERT INTO ticks ({', '.join(Tick._fields)})"  # noqa: S608  made of constants
    f" VALUES ({', '.join(f'${number}' for number in range(1, _WIDTH + 1))}) ON CONFLICT DO NOTHING"
)
_RECORD: Final = (
    f"UPDATE ticks SET {', '.join(f'{name} = ${number}' for number, name in enumerate(Tick._fields[1:], 2))}"  # noqa: S608  made of constants
    " WHERE tick_id = $1 AND state = 'due'"
)


class _Carry(Protocol):
    """Carries out a work in a transaction of the store."""

    def __call__(self, work: Callable[[Transaction], Awaitable[T]]) -> Awaitable[T]: ...


class PostgreSQLTimetable:
    """Made by `PostgreSQLStore`, whose transactions and clock are its own."""

    def __init__(self, database: Database, write: _Carry, look: _Carry) -> None:
        self._database = database
        self._write = write
        self._look = look

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        async def work(transaction: Transaction) -> ScheduleView:
            schedule = schedule_rows.added(await _moment(transaction), spec, created_by)
            await transaction.connection.execute(_KEEP, *schedule)
            return await _seen(transaction.connection, schedule)

        try:
            return await self._change(work)
        except asyncpg.UniqueViolationError:
            return NotScheduled.NAME_TAKEN

    async def schedules(
        self, *, limit: int, after: str | None = None, wanted: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        asked = wanted or {}
        repository, ref = asked.get("repository"), asked.get("ref")

        async def work(transaction: Transaction) -> Sequence[ScheduleView]:
            rows = await transaction.connection.fetch(
                f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id > $1"  # noqa: S608  made of constants
                " AND ($2::text IS NULL OR $2 IN (repo_full_name, repo_url)) AND ($3::text IS NULL OR $3 = "
                "CASE WHEN branch LIKE 'refs/%' THEN branch ELSE 'refs/heads/' || branch END)"
                " ORDER BY schedule_id LIMIT $4",
                after or "",
                repository,
                ref and full_ref(ref),
                limit,
            )
            return [await _seen(transaction.connection, _schedule(row)) for row in rows]

        return await self._look(work)

    async def schedule(self, which: str) -> ScheduleView | None:
        async def work(transaction: Transaction) -> ScheduleView | None:
            schedule = await _known(transaction.connection, which)
            return None if schedule is None else await _seen(transaction.connection, schedule)

        return await self._look(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        async def work(transaction: Transaction) -> Sequence[TickView]:
            return [
                _tick_view(row) for row in await transaction.connection.fetch(_NEWEST, schedule_id, limit)
            ]

        return await self._look(work)

    async def now(self) -> float:
        return await self._look(Transaction.now)

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        async def work(transaction: Transaction) -> ScheduleView | None:
            schedule = await _known(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            moment = await _moment(transaction)
            schedule, _ = await _progress(transaction.connection, schedule, moment)
            new = schedule_rows.edited(schedule, changes, moment.now)
            await transaction.connection.execute(_KEEP, *new)
            return await _seen(transaction.connection, new)

        try:
            return await self._change(work)
        except asyncpg.UniqueViolationError:
            return NotScheduled.NAME_TAKEN

    async def pause(self, which: str) -> ScheduleView | None:
        async def work(transaction: Transaction) -> ScheduleView | None:
            schedule = await _known(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            moment = await _moment(transaction)
            schedule, _ = await _progress(transaction.connection, schedule, moment)
            new = schedule_rows.paused(schedule, moment.now)
            await transaction.connection.execute(_KEEP, *new)
            pending = await _pending(transaction.connection, schedule.schedule_id)
            if pending is not None:
                detail = "its schedule was paused before it could fire"
                skipped = schedule_rows.skipped(pending, moment, TickReason.PAUSED, detail)
                await _record(transaction.connection, skipped)
            return await _seen(transaction.connection, new)

        return await self._change(work)

    async def resume(self, which: str) -> ScheduleView | None:
        async def work(transaction: Transaction) -> ScheduleView | None:
            schedule = await _known(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            new = schedule_rows.resumed(schedule, await transaction.now())
            await transaction.connection.execute(_KEEP, *new)
            return await _seen(transaction.connection, new)

        return await self._change(work)

    async def remove(self, which: str) -> bool:
        async def work(transaction: Transaction) -> bool:
            schedule = await _known(transaction.connection, which, lock=True)
            if schedule is None:
                return False
            for table in ("ticks", "schedules"):
                await transaction.connection.execute(
                    f"DELETE FROM {table} WHERE schedule_id = $1",  # noqa: S608  made of constants
                    schedule.schedule_id,
                )
            return True

        return await self._change(work)

    async def fire(self, which: str) -> ScheduleView | None:
        async def work(transaction: Transaction) -> ScheduleView | None:
            schedule = await _known(transaction.connection, which, lock=True)
            if schedule is None:
                return None
            await _insert(transaction.connection, schedule_rows.by_hand(await _moment(transaction), schedule))
            return await _seen(transaction.connection, schedule)

        return await self._change(work)

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        claimed = await self._write(lambda transaction: _claim(transaction, worker_id, limit))
        if claimed.tasks or claimed.settled:
            self._database.ring(CHANNEL)
        return claimed

    async def fired(self, task: TickTask, commit_sha: str) -> Settled | None:
        async def work(transaction: Transaction) -> Settled | None:
            found = await _of_task(transaction.connection, task)
            if found is None:
                return None
            schedule, tick = found
            if schedule_rows.is_fired(tick, task):
                return schedule_rows.settled(schedule, tick)
            if not schedule_rows.is_held(tick, task):
                return None
            moment = await _moment(transaction)
            try:
                request = schedule_rows.request_of(moment, schedule, tick, commit_sha)
            except InvalidMessage as error:
                new = schedule_rows.not_fired(
                    tick, moment, TickReason.NOT_A_REQUEST, error.detail, again=False
                )
            else:
                (admission,) = await intake.admit(transaction, [request], [request.encode()])
                new = schedule_rows.fired(tick, moment, admission.run_id, commit_sha)
            await _record(transaction.connection, new)
            return schedule_rows.settled(schedule, new)

        return await self._change(work)

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, again: bool
    ) -> Settled | None:
        async def work(transaction: Transaction) -> Settled | None:
            held = await _held(transaction.connection, task)
            if held is None:
                return None
            schedule, tick = held
            new = schedule_rows.not_fired(tick, await _moment(transaction), reason, detail, again=again)
            await _record(transaction.connection, new)
            return schedule_rows.settled(schedule, new)

        return await self._change(work)

    async def release(self, task: TickTask) -> None:
        async def work(transaction: Transaction) -> None:
            held = await _held(transaction.connection, task)
            if held is not None:
                released = schedule_rows.released(held[1], await transaction.now())
                await _record(transaction.connection, released)

        await self._change(work)

    async def pause_seconds(self) -> float | None:
        async def work(transaction: Transaction) -> float | None:
            at = await transaction.connection.fetchval(
                "SELECT least((SELECT min(next_at) FROM schedules WHERE next_at IS NOT NULL),"
                " (SELECT min(greatest(retry_at, lease_until)) FROM ticks WHERE state = 'due'))"
            )
            return None if at is None else max(0.0, at - await transaction.now())

        return await self._look(work)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)

    async def _change(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        result = await self._write(work)
        self._database.ring(CHANNEL)
        return result


async def forget(connection: "Connection", before: float) -> None:
    """What became of ticks that were settled before that moment."""
    await connection.execute("DELETE FROM ticks WHERE settled_at < $1", before)


async def _claim(transaction: Transaction, worker_id: str, limit: int) -> ClaimedTicks:
    connection, moment = transaction.connection, await _moment(transaction)
    rows = await connection.fetch(
        f"SELECT {SCHEDULE} FROM schedules WHERE next_at <= $1 ORDER BY next_at LIMIT $2"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE SKIP LOCKED",
        moment.now,
        limit,
    )
    settled: list[Settled] = []
    for schedule in map(_schedule, rows):
        settled += (await _progress(connection, schedule, moment))[1]
    due = await connection.fetch(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE state = 'due'"  # noqa: S608  made of constants
        " AND retry_at <= $1 AND coalesce(lease_until, 0) <= $1 ORDER BY retry_at LIMIT $2"
        " FOR NO KEY UPDATE OF ticks SKIP LOCKED",
        moment.now,
        limit,
    )
    busy = await _with_runs(connection, [row["schedule_id"] for row in due])
    tasks = []
    for row in due:
        tick, schedule = _tick(row), _schedule(row[_WIDTH:])
        if schedule_rows.makes_way(schedule, tick, busy):
            skipped = schedule_rows.skipped_for_run(tick, moment, busy[schedule.schedule_id])
            await _record(connection, skipped)
            settled.append(schedule_rows.settled(schedule, skipped))
        else:
            held = schedule_rows.claimed(tick, moment, worker_id)
            await _record(connection, held)
            tasks.append(schedule_rows.task_of(schedule, held))
    return ClaimedTicks(tasks=tasks, settled=settled, more=limit in {len(rows), len(due)})


async def _progress(
    connection: "Connection", schedule: Schedule, moment: Moment
) -> tuple[Schedule, Sequence[Settled]]:
    """The schedule, which is locked, with a row for every tick that has come, and what of them is settled."""
    if schedule.next_at is None or schedule.next_at > moment.now:
        return schedule, ()
    pending = await _pending(connection, schedule.schedule_id)
    progress = schedule_rows.progressed(moment, schedule, pending)
    await connection.execute(_KEEP, *progress.schedule)
    ended = []
    if progress.overtaken is not None:
        await _record(connection, progress.overtaken)
        ended.append(progress.overtaken)
    inserted = [tick for tick in progress.new if await _insert(connection, tick)]
    ended += [tick for tick in inserted if tick.state is not TickState.DUE]
    return progress.schedule, [schedule_rows.settled(schedule, tick) for tick in ended]


async def _with_runs(connection: "Connection", schedule_ids: Sequence[str]) -> dict[str, str]:
    """Which of these have a run that has not ended."""
    rows = await connection.fetch(
        "SELECT ticks.schedule_id, runs.run_id FROM ticks JOIN runs USING (run_id)"
        " WHERE ticks.schedule_id = ANY($1) AND ticks.state = 'fired' AND runs.finished_at IS NULL",
        list(schedule_ids),
    )
    return {row["schedule_id"]: row["run_id"] for row in rows}


async def _of_task(connection: "Connection", task: TickTask) -> tuple[Schedule, Tick] | None:
    """The tick with its schedule, locked."""
    row = await connection.fetchrow(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE tick_id = $1"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE OF ticks",
        task.tick_id,
    )
    return None if row is None else (_schedule(row[_WIDTH:]), _tick(row))


async def _held(connection: "Connection", task: TickTask) -> tuple[Schedule, Tick] | None:
    """The same while the tick is in the hands of this attempt."""
    found = await _of_task(connection, task)
    return None if found is None or not schedule_rows.is_held(found[1], task) else found


async def _known(connection: "Connection", which: str, *, lock: bool = False) -> Schedule | None:
    row = await connection.fetchrow(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id = $1 OR name = $1"  # noqa: S608  made of constants
        f" {'FOR UPDATE' if lock else ''}",
        which,
    )
    return None if row is None else _schedule(row)


async def _pending(connection: "Connection", schedule_id: str) -> Tick | None:
    """The tick of the schedule that has not fired yet, locked; there is one at most."""
    row = await connection.fetchrow(
        f"SELECT {TICK} FROM ticks WHERE schedule_id = $1 AND state = 'due' AND NOT by_hand"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE",
        schedule_id,
    )
    return None if row is None else _tick(row)


async def _insert(connection: "Connection", tick: Tick) -> bool:
    """Whether it is new: a tick has one row, whatever the clock and people do."""
    inserted = await connection.execute(_INSERT, *tick)
    if tick.settled_at is not None:
        await _forget_oldest(connection, tick.schedule_id)
    return inserted == "INSERT 0 1"


async def _record(connection: "Connection", tick: Tick) -> None:
    """How a tick that was due stands now."""
    await connection.execute(_RECORD, *tick)
    if tick.settled_at is not None:
        await _forget_oldest(connection, tick.schedule_id)


async def _forget_oldest(connection: "Connection", schedule_id: str) -> None:
    await connection.execute(
        "DELETE FROM ticks WHERE schedule_id = $1 AND state <> 'due' AND tick_at <= ("
        "SELECT tick_at FROM ticks WHERE schedule_id = $1 ORDER BY tick_at DESC LIMIT 1 OFFSET $2)",
        schedule_id,
        KEPT_TICKS,
    )


async def _moment(transaction: Transaction) -> Moment:
    return Moment(await transaction.now(), transaction.rules)


async def _seen(connection: "Connection", schedule: Schedule) -> ScheduleView:
    row = await connection.fetchrow(_NEWEST, schedule.schedule_id, 1)
    return schedule_view(schedule, None if row is None else _tick_view(row))


def _tick_view(row: "asyncpg.Record") -> TickView:
    return tick_view(_tick(row), None if row["run_state"] is None else RunState(row["run_state"]))


def _schedule(row: Any) -> Schedule:
    """From the columns `SCHEDULE`."""
    schedule = Schedule(*row)
    return schedule._replace(missed=Missed(schedule.missed), overlap=Overlap(schedule.overlap))


def _tick(row: Any) -> Tick:
    """From the columns `TICK`, and whatever follows them."""
    tick = Tick(*row[:_WIDTH])
    return tick._replace(state=TickState(tick.state), reason=TickReason(tick.reason))
