"""Locks and loads schedules and ticks for a decision in PostgreSQL, and writes them.

Locks are taken in one order: a schedule, its ticks, and then what admitting its request takes. A claim waits for no
schedule or tick.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import asyncpg

from solstice_orchestrator.schedules.ticks import REMEMBERED_TICKS, TickState
from solstice_orchestrator.store.decisions.schedule import NameTaken, ScheduleUpdate
from solstice_orchestrator.store.postgresql.tables.columns import BEGUN_AT
from solstice_orchestrator.store.records.schedule_rows import (
    SCHEDULE,
    TICK,
    Schedule,
    Tick,
    full_ref,
    schedule_of,
    schedule_view,
    scheduled_tick_of,
    settled_of,
    tick_of,
    tick_view_of,
)
from solstice_orchestrator.store.schedule_store import (
    ScheduleFilters,
    ScheduleView,
    SettledTick,
    TickTask,
    TickView,
)

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

_NEWEST: Final = (
    f"SELECT {TICK}, CASE WHEN {BEGUN_AT} IS NULL THEN runs.state ELSE 'running' END AS state"  # noqa: S608  made of constants
    " FROM ticks LEFT JOIN runs USING (run_id)"
    " WHERE schedule_id = $1 ORDER BY tick_at DESC, tick_id LIMIT $2"
)
_KEEP: Final = (
    f"INSERT INTO schedules ({', '.join(Schedule._fields)})"  # noqa: S608  made of constants
    f" VALUES ({', '.join(f'${number}' for number in range(1, len(Schedule._fields) + 1))})"
    f" ON CONFLICT (schedule_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in Schedule._fields[1:])}"
)
_INSERT: Final = (
    f"INSERT INTO ticks ({', '.join(Tick._fields)})"  # noqa: S608  made of constants
    f" VALUES ({', '.join(f'${number}' for number in range(1, len(Tick._fields) + 1))}) ON CONFLICT DO NOTHING"
)
_RECORD: Final = (
    f"UPDATE ticks SET {', '.join(f'{name} = ${number}' for number, name in enumerate(Tick._fields[1:], 2))}"  # noqa: S608  made of constants
    " WHERE tick_id = $1 AND state = 'due'"
)


async def list_schedules(
    connection: "Connection", filters: ScheduleFilters, *, after: str | None, limit: int
) -> Sequence[ScheduleView]:
    """Return schedules in the order in which they were added, after the id `after`."""
    ref = filters.get("ref")
    rows = await connection.fetch(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id > $1"  # noqa: S608  made of constants
        " AND ($2::text IS NULL OR $2 IN (repo_full_name, repo_url)) AND ($3::text IS NULL OR $3 = "
        "CASE WHEN branch LIKE 'refs/%' THEN branch ELSE 'refs/heads/' || branch END)"
        " ORDER BY schedule_id LIMIT $4",
        after or "",
        filters.get("repository"),
        ref and full_ref(ref),
        limit,
    )
    return [await view_schedule(connection, schedule_of(row)) for row in rows]


async def find_schedule(connection: "Connection", which: str, *, lock: bool = False) -> Schedule | None:
    """Return the schedule with this id or name."""
    row = await connection.fetchrow(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id = $1 OR name = $1"  # noqa: S608  made of constants
        f" {'FOR UPDATE' if lock else ''}",
        which,
    )
    return None if row is None else schedule_of(row)


async def view_schedule(connection: "Connection", schedule: Schedule) -> ScheduleView:
    """Return the schedule with its newest tick."""
    last = await newest_ticks(connection, schedule.schedule_id, 1)
    return schedule_view(schedule, last[0] if last else None)


async def newest_ticks(connection: "Connection", schedule_id: str, limit: int) -> Sequence[TickView]:
    """Return its newest ticks, newest first."""
    return [tick_view_of(row) for row in await connection.fetch(_NEWEST, schedule_id, limit)]


async def pending_of(connection: "Connection", schedule: Schedule) -> Tick | None:
    """Lock and return the schedule's tick that has not fired yet; at most one exists."""
    row = await connection.fetchrow(
        f"SELECT {TICK} FROM ticks WHERE schedule_id = $1 AND state = 'due' AND NOT by_hand"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE",
        schedule.schedule_id,
    )
    return None if row is None else tick_of(row)


async def tick_of_task(connection: "Connection", task: TickTask) -> tuple[Schedule, Tick] | None:
    """Lock and return the tick with its schedule."""
    row = await connection.fetchrow(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE tick_id = $1"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE OF ticks",
        task.tick_id,
    )
    return None if row is None else scheduled_tick_of(row)


async def overdue_schedules(connection: "Connection", now: float, limit: int) -> Sequence[Schedule]:
    """Lock and return schedules whose next tick has come; skip locked ones."""
    rows = await connection.fetch(
        f"SELECT {SCHEDULE} FROM schedules WHERE next_at <= $1 ORDER BY next_at LIMIT $2"  # noqa: S608  made of constants
        " FOR NO KEY UPDATE SKIP LOCKED",
        now,
        limit,
    )
    return [schedule_of(row) for row in rows]


async def due_ticks(connection: "Connection", now: float, limit: int) -> Sequence[tuple[Schedule, Tick]]:
    """Lock and return due ticks that are not claimed; skip locked ones."""
    rows = await connection.fetch(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE state = 'due'"  # noqa: S608  made of constants
        " AND retry_at <= $1 AND coalesce(lease_until, 0) <= $1 ORDER BY retry_at LIMIT $2"
        " FOR NO KEY UPDATE OF ticks SKIP LOCKED",
        now,
        limit,
    )
    return [scheduled_tick_of(row) for row in rows]


async def schedules_with_runs(connection: "Connection", schedule_ids: Sequence[str]) -> dict[str, str]:
    """Return the unfinished run of each of these schedules that has one."""
    rows = await connection.fetch(
        "SELECT ticks.schedule_id, runs.run_id FROM ticks JOIN runs USING (run_id)"
        " WHERE ticks.schedule_id = ANY($1) AND ticks.state = 'fired' AND runs.finished_at IS NULL",
        list(schedule_ids),
    )
    return {row["schedule_id"]: row["run_id"] for row in rows}


async def next_at(connection: "Connection") -> float | None:
    """Return when there is something to claim next; None when no tick will come."""
    at = await connection.fetchval(
        "SELECT least((SELECT min(next_at) FROM schedules WHERE next_at IS NOT NULL),"
        " (SELECT min(greatest(retry_at, lease_until)) FROM ticks WHERE state = 'due'))"
    )
    return None if at is None else float(at)


async def update_schedule(connection: "Connection", changed: ScheduleUpdate) -> ScheduleView:
    """Write the update, and return the schedule as readers see it. Raises NameTaken."""
    try:
        await write_update(connection, changed)
    except asyncpg.UniqueViolationError:
        raise NameTaken from None
    return await view_schedule(connection, changed.schedule)


async def write_update(connection: "Connection", changed: ScheduleUpdate) -> Sequence[SettledTick]:
    """Write a decision's changes, and return the ticks that they settled."""
    await connection.execute(_KEEP, *changed.schedule)
    for tick in changed.ended:
        await record_tick(connection, tick)
    new = [tick for tick in changed.new if await _insert(connection, tick)]
    settled = (tick for tick in (*changed.ended, *new) if tick.state is not TickState.DUE)
    return [settled_of(changed.schedule, tick) for tick in settled]


async def record_tick(connection: "Connection", tick: Tick) -> None:
    """Write the new state of a tick that was due."""
    await connection.execute(_RECORD, *tick)
    if tick.settled_at is not None:
        await _forget_oldest(connection, tick.schedule_id)


async def remove_schedule(connection: "Connection", schedule: Schedule) -> None:
    """Delete the schedule and its ticks."""
    for table in ("ticks", "schedules"):
        await connection.execute(
            f"DELETE FROM {table} WHERE schedule_id = $1",  # noqa: S608  made of constants
            schedule.schedule_id,
        )


async def forget_ticks(connection: "Connection", before: float) -> None:
    """Delete ticks that were settled before that moment."""
    await connection.execute("DELETE FROM ticks WHERE settled_at < $1", before)


async def _insert(connection: "Connection", tick: Tick) -> bool:
    """Insert the tick, and return whether it is new: a tick has one row."""
    inserted = await connection.execute(_INSERT, *tick)
    if tick.settled_at is not None:
        await _forget_oldest(connection, tick.schedule_id)
    return inserted == "INSERT 0 1"


async def _forget_oldest(connection: "Connection", schedule_id: str) -> None:
    await connection.execute(
        "DELETE FROM ticks WHERE schedule_id = $1 AND state <> 'due' AND tick_at <= ("
        "SELECT tick_at FROM ticks WHERE schedule_id = $1 ORDER BY tick_at DESC LIMIT 1 OFFSET $2)",
        schedule_id,
        REMEMBERED_TICKS,
    )
