"""Schedules and their ticks in the SQLite store; it keeps the promises of `Timetable`."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar

from solstice_common.errors import InvalidMessage
from solstice_orchestrator.jobs import RunState
from solstice_orchestrator.store import schedule_rows
from solstice_orchestrator.store.moment import Moment
from solstice_orchestrator.store.schedule_rows import Schedule, Tick, full_ref, schedule_view, tick_view
from solstice_orchestrator.store.sqlite import intake
from solstice_orchestrator.store.sqlite.bell import Bell
from solstice_orchestrator.store.sqlite.transaction import Transaction
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

T = TypeVar("T")

SCHEDULE: Final = ", ".join(f"schedules.{name}" for name in Schedule._fields)
TICK: Final = ", ".join(f"ticks.{name}" for name in Tick._fields)
_WIDTH: Final = len(Tick._fields)
_LISTED: Final = "(SELECT value FROM json_each(?))"
_NEWEST: Final = (
    f"SELECT {TICK}, runs.state AS run_state FROM ticks LEFT JOIN runs USING (run_id)"  # noqa: S608  made of constants
    " WHERE schedule_id = ? ORDER BY tick_at DESC, tick_id LIMIT ?"
)


class _Write(Protocol):
    """Carries out a work as one transaction of the store; `quiet` wakes nobody who waits for runs and jobs."""

    def __call__(self, work: Callable[[Transaction], T], *, quiet: bool = False) -> Awaitable[T]: ...


class _Read(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection], T]) -> Awaitable[T]: ...


class SqliteTimetable:
    """Made by `SqliteStore`, whose transactions and clock are its own."""

    def __init__(self, write: _Write, read: _Read, moment: Callable[[], Moment], bell: Bell) -> None:
        self._write = write
        self._read = read
        self._moment = moment
        self._bell = bell

    def close(self) -> None:
        """Ring what was still to be rung."""
        self._bell.close()

    async def add(self, spec: ScheduleSpec, created_by: str | None) -> ScheduleView | NotScheduled:
        def work(transaction: Transaction) -> ScheduleView | NotScheduled:
            if _known(transaction.connection, spec.name) is not None:
                return NotScheduled.NAME_TAKEN
            schedule = schedule_rows.added(transaction.moment, spec, created_by)
            _keep(transaction.connection, schedule)
            return _seen(transaction.connection, schedule)

        return await self._change(work)

    async def schedules(
        self, *, limit: int, after: str | None = None, wanted: ScheduleFilters | None = None
    ) -> Sequence[ScheduleView]:
        asked = wanted or {}
        repository, ref = asked.get("repository"), asked.get("ref")

        def work(connection: sqlite3.Connection) -> Sequence[ScheduleView]:
            rows = connection.execute(
                f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id > ?1"  # noqa: S608  made of constants
                " AND (?2 IS NULL OR ?2 IN (repo_full_name, repo_url)) AND (?3 IS NULL OR ?3 = "
                "CASE WHEN branch LIKE 'refs/%' THEN branch ELSE 'refs/heads/' || branch END)"
                " ORDER BY schedule_id LIMIT ?4",
                (after or "", repository, ref and full_ref(ref), limit),
            ).fetchall()
            return [_seen(connection, _schedule(row)) for row in rows]

        return await self._read(work)

    async def schedule(self, which: str) -> ScheduleView | None:
        def work(connection: sqlite3.Connection) -> ScheduleView | None:
            schedule = _known(connection, which)
            return None if schedule is None else _seen(connection, schedule)

        return await self._read(work)

    async def ticks(self, schedule_id: str, limit: int) -> Sequence[TickView]:
        return await self._read(
            lambda connection: [
                _tick_view(row) for row in connection.execute(_NEWEST, (schedule_id, limit)).fetchall()
            ]
        )

    async def now(self) -> float:
        return self._moment().now

    async def edit(self, which: str, changes: ScheduleChanges) -> ScheduleView | NotScheduled | None:
        def work(transaction: Transaction) -> ScheduleView | NotScheduled | None:
            schedule = _known(transaction.connection, which)
            if schedule is None:
                return None
            named = _known(transaction.connection, changes.get("name", schedule.name))
            if named is not None and named.schedule_id != schedule.schedule_id:
                return NotScheduled.NAME_TAKEN
            schedule, _ = _progress(transaction, schedule)
            new = schedule_rows.edited(schedule, changes, transaction.now)
            _keep(transaction.connection, new)
            return _seen(transaction.connection, new)

        return await self._change(work)

    async def pause(self, which: str) -> ScheduleView | None:
        def work(transaction: Transaction) -> ScheduleView | None:
            schedule = _known(transaction.connection, which)
            if schedule is None:
                return None
            schedule, _ = _progress(transaction, schedule)
            new = schedule_rows.paused(schedule, transaction.now)
            _keep(transaction.connection, new)
            pending = _pending(transaction.connection, schedule.schedule_id)
            if pending is not None:
                detail = "its schedule was paused before it could fire"
                _record(
                    transaction,
                    schedule_rows.skipped(pending, transaction.moment, TickReason.PAUSED, detail),
                )
            return _seen(transaction.connection, new)

        return await self._change(work)

    async def resume(self, which: str) -> ScheduleView | None:
        def work(transaction: Transaction) -> ScheduleView | None:
            schedule = _known(transaction.connection, which)
            if schedule is None:
                return None
            new = schedule_rows.resumed(schedule, transaction.now)
            _keep(transaction.connection, new)
            return _seen(transaction.connection, new)

        return await self._change(work)

    async def remove(self, which: str) -> bool:
        def work(transaction: Transaction) -> bool:
            schedule = _known(transaction.connection, which)
            if schedule is None:
                return False
            for table in ("ticks", "schedules"):
                transaction.connection.execute(
                    f"DELETE FROM {table} WHERE schedule_id = ?",  # noqa: S608  made of constants
                    (schedule.schedule_id,),
                )
            return True

        return await self._change(work)

    async def fire(self, which: str) -> ScheduleView | None:
        def work(transaction: Transaction) -> ScheduleView | None:
            schedule = _known(transaction.connection, which)
            if schedule is None:
                return None
            _insert(transaction, schedule_rows.by_hand(transaction.moment, schedule))
            return _seen(transaction.connection, schedule)

        return await self._change(work)

    async def claim(self, worker_id: str, limit: int) -> ClaimedTicks:
        claimed = await self._write(lambda transaction: _claim(transaction, worker_id, limit), quiet=True)
        if claimed.tasks or claimed.settled:
            self._bell.ring()
        return claimed

    async def fired(self, task: TickTask, commit_sha: str) -> Settled | None:
        def work(transaction: Transaction) -> Settled | None:
            found = _of_task(transaction, task)
            if found is None:
                return None
            schedule, tick = found
            if schedule_rows.is_fired(tick, task):
                return schedule_rows.settled(schedule, tick)
            if not schedule_rows.is_held(tick, task):
                return None
            try:
                request = schedule_rows.request_of(transaction.moment, schedule, tick, commit_sha)
            except InvalidMessage as error:
                new = schedule_rows.not_fired(
                    tick, transaction.moment, TickReason.NOT_A_REQUEST, error.detail, again=False
                )
            else:
                (admission,) = intake.admit(transaction, [request], [request.encode()])
                new = schedule_rows.fired(tick, transaction.moment, admission.run_id, commit_sha)
            _record(transaction, new)
            return schedule_rows.settled(schedule, new)

        settled = await self._write(work)
        self._bell.ring()
        return settled

    async def not_fired(
        self, task: TickTask, reason: TickReason, detail: str, *, again: bool
    ) -> Settled | None:
        def work(transaction: Transaction) -> Settled | None:
            held = _held(transaction, task)
            if held is None:
                return None
            schedule, tick = held
            new = schedule_rows.not_fired(tick, transaction.moment, reason, detail, again=again)
            _record(transaction, new)
            return schedule_rows.settled(schedule, new)

        return await self._change(work)

    async def release(self, task: TickTask) -> None:
        def work(transaction: Transaction) -> None:
            held = _held(transaction, task)
            if held is not None:
                _record(transaction, schedule_rows.released(held[1], transaction.now))

        await self._change(work)

    async def pause_seconds(self) -> float | None:
        def work(connection: sqlite3.Connection) -> float | None:
            row = connection.execute(
                "SELECT min(at) FROM (SELECT min(next_at) AS at FROM schedules WHERE next_at IS NOT NULL"
                " UNION ALL SELECT min(max(retry_at, ifnull(lease_until, 0))) FROM ticks WHERE state = 'due')"
            ).fetchone()
            return None if row[0] is None else max(0.0, row[0] - self._moment().now)

        return await self._read(work)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._bell.listen()

    async def _change(self, work: Callable[[Transaction], T]) -> T:
        """Of schedules alone: who waits for runs and jobs sleeps on."""
        result = await self._write(work, quiet=True)
        self._bell.ring()
        return result


def forget(connection: sqlite3.Connection, before: float) -> None:
    """What became of ticks that were settled before that moment."""
    connection.execute("DELETE FROM ticks WHERE settled_at < ?", (before,))


def _claim(transaction: Transaction, worker_id: str, limit: int) -> ClaimedTicks:
    connection, moment = transaction.connection, transaction.moment
    rows = connection.execute(
        f"SELECT {SCHEDULE} FROM schedules WHERE next_at <= ? ORDER BY next_at LIMIT ?",  # noqa: S608  made of constants
        (moment.now, limit),
    ).fetchall()
    settled: list[Settled] = []
    for schedule in map(_schedule, rows):
        settled += _progress(transaction, schedule)[1]
    due = connection.execute(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE state = 'due'"  # noqa: S608  made of constants
        " AND retry_at <= ?1 AND ifnull(lease_until, 0) <= ?1 ORDER BY retry_at LIMIT ?2",
        (moment.now, limit),
    ).fetchall()
    busy = _with_runs(connection, [row["schedule_id"] for row in due])
    tasks = []
    for row in due:
        tick, schedule = _tick(row), _schedule(row[_WIDTH:])
        if schedule_rows.makes_way(schedule, tick, busy):
            skipped = schedule_rows.skipped_for_run(tick, moment, busy[schedule.schedule_id])
            _record(transaction, skipped)
            settled.append(schedule_rows.settled(schedule, skipped))
        else:
            held = schedule_rows.claimed(tick, moment, worker_id)
            _record(transaction, held)
            tasks.append(schedule_rows.task_of(schedule, held))
    return ClaimedTicks(tasks=tasks, settled=settled, more=limit in {len(rows), len(due)})


def _progress(transaction: Transaction, schedule: Schedule) -> tuple[Schedule, Sequence[Settled]]:
    """The schedule with a row for every tick that has come, and what of them is settled."""
    if schedule.next_at is None or schedule.next_at > transaction.now:
        return schedule, ()
    pending = _pending(transaction.connection, schedule.schedule_id)
    progress = schedule_rows.progressed(transaction.moment, schedule, pending)
    _keep(transaction.connection, progress.schedule)
    ended = []
    if progress.overtaken is not None:
        _record(transaction, progress.overtaken)
        ended.append(progress.overtaken)
    ended += [tick for tick in progress.new if _insert(transaction, tick) and tick.state is not TickState.DUE]
    return progress.schedule, [schedule_rows.settled(schedule, tick) for tick in ended]


def _with_runs(connection: sqlite3.Connection, schedule_ids: Sequence[str]) -> dict[str, str]:
    """Which of these have a run that has not ended."""
    rows = connection.execute(
        "SELECT ticks.schedule_id, runs.run_id FROM ticks JOIN runs USING (run_id)"  # noqa: S608  made of constants
        f" WHERE ticks.schedule_id IN {_LISTED} AND ticks.state = 'fired' AND runs.finished_at IS NULL",
        (json.dumps(list(schedule_ids)),),
    )
    return {row["schedule_id"]: row["run_id"] for row in rows}


def _of_task(transaction: Transaction, task: TickTask) -> tuple[Schedule, Tick] | None:
    """The tick with its schedule."""
    row = transaction.connection.execute(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE tick_id = ?",  # noqa: S608  made of constants
        (task.tick_id,),
    ).fetchone()
    return None if row is None else (_schedule(row[_WIDTH:]), _tick(row))


def _held(transaction: Transaction, task: TickTask) -> tuple[Schedule, Tick] | None:
    """The same while the tick is in the hands of this attempt."""
    found = _of_task(transaction, task)
    return None if found is None or not schedule_rows.is_held(found[1], task) else found


def _known(connection: sqlite3.Connection, which: str) -> Schedule | None:
    row = connection.execute(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id = ?1 OR name = ?1",  # noqa: S608  made of constants
        (which,),
    ).fetchone()
    return None if row is None else _schedule(row)


def _pending(connection: sqlite3.Connection, schedule_id: str) -> Tick | None:
    """The tick of the schedule that has not fired yet; there is one at most."""
    row = connection.execute(
        f"SELECT {TICK} FROM ticks WHERE schedule_id = ? AND state = 'due' AND NOT by_hand",  # noqa: S608  made of constants
        (schedule_id,),
    ).fetchone()
    return None if row is None else _tick(row)


def _keep(connection: sqlite3.Connection, schedule: Schedule) -> None:
    marks = ", ".join("?" * len(schedule))
    connection.execute(f"INSERT OR REPLACE INTO schedules VALUES ({marks})", schedule)  # noqa: S608  made of constants


def _insert(transaction: Transaction, tick: Tick) -> bool:
    """Whether it is new: a tick has one row, whatever the clock and people do."""
    marks = ", ".join("?" * len(tick))
    inserted = transaction.connection.execute(
        f"INSERT INTO ticks VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608  made of constants
        tick,
    ).rowcount
    if tick.settled_at is not None:
        _forget_oldest(transaction.connection, tick.schedule_id)
    return inserted == 1


def _record(transaction: Transaction, tick: Tick) -> None:
    """How a tick that was due stands now."""
    transaction.connection.execute(
        f"UPDATE ticks SET {', '.join(f'{name} = ?' for name in Tick._fields[1:])}"  # noqa: S608  made of constants
        " WHERE tick_id = ? AND state = 'due'",
        (*tick[1:], tick.tick_id),
    )
    if tick.settled_at is not None:
        _forget_oldest(transaction.connection, tick.schedule_id)


def _forget_oldest(connection: sqlite3.Connection, schedule_id: str) -> None:
    connection.execute(
        "DELETE FROM ticks WHERE schedule_id = ?1 AND state <> 'due' AND tick_at <= ("
        "SELECT tick_at FROM ticks WHERE schedule_id = ?1 ORDER BY tick_at DESC LIMIT 1 OFFSET ?2)",
        (schedule_id, KEPT_TICKS),
    )


def _seen(connection: sqlite3.Connection, schedule: Schedule) -> ScheduleView:
    row = connection.execute(_NEWEST, (schedule.schedule_id, 1)).fetchone()
    return schedule_view(schedule, None if row is None else _tick_view(row))


def _tick_view(row: sqlite3.Row) -> TickView:
    return tick_view(_tick(row), None if row["run_state"] is None else RunState(row["run_state"]))


def _schedule(row: Sequence[Any]) -> Schedule:
    """From the columns `SCHEDULE`."""
    schedule = Schedule(*row)
    return schedule._replace(
        missed=Missed(schedule.missed), overlap=Overlap(schedule.overlap), paused=bool(schedule.paused)
    )


def _tick(row: Sequence[Any]) -> Tick:
    """From the columns `TICK`, and whatever follows them."""
    tick = Tick(*row[:_WIDTH])
    return tick._replace(
        state=TickState(tick.state), reason=TickReason(tick.reason), by_hand=bool(tick.by_hand)
    )
