"""Loads schedules and their ticks for a decision in SQLite, and writes them after it."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.schedules.ticks import REMEMBERED_TICKS, TickState
from solstice_orchestrator.store.decisions.schedule import NameTaken, ScheduleUpdate
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

_LISTED: Final = "(SELECT value FROM json_each(?))"
_NEWEST: Final = (
    f"SELECT {TICK}, runs.state FROM ticks LEFT JOIN runs USING (run_id)"  # noqa: S608  made of constants
    " WHERE schedule_id = ? ORDER BY tick_at DESC, tick_id LIMIT ?"
)


def list_schedules(
    connection: sqlite3.Connection, filters: ScheduleFilters, *, after: str | None, limit: int
) -> Sequence[ScheduleView]:
    """Return schedules in the order in which they were added, after the id `after`."""
    ref = filters.get("ref")
    rows = connection.execute(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id > ?1"  # noqa: S608  made of constants
        " AND (?2 IS NULL OR ?2 IN (repo_full_name, repo_url)) AND (?3 IS NULL OR ?3 = "
        "CASE WHEN branch LIKE 'refs/%' THEN branch ELSE 'refs/heads/' || branch END)"
        " ORDER BY schedule_id LIMIT ?4",
        (after or "", filters.get("repository"), ref and full_ref(ref), limit),
    ).fetchall()
    return [view_schedule(connection, schedule_of(row)) for row in rows]


def find_schedule(connection: sqlite3.Connection, which: str) -> Schedule | None:
    """Return the schedule with this id or name."""
    row = connection.execute(
        f"SELECT {SCHEDULE} FROM schedules WHERE schedule_id = ?1 OR name = ?1",  # noqa: S608  made of constants
        (which,),
    ).fetchone()
    return None if row is None else schedule_of(row)


def view_schedule(connection: sqlite3.Connection, schedule: Schedule) -> ScheduleView:
    """Return the schedule with its newest tick."""
    last = newest_ticks(connection, schedule.schedule_id, 1)
    return schedule_view(schedule, last[0] if last else None)


def newest_ticks(connection: sqlite3.Connection, schedule_id: str, limit: int) -> Sequence[TickView]:
    """Return its newest ticks, newest first."""
    return [tick_view_of(row) for row in connection.execute(_NEWEST, (schedule_id, limit)).fetchall()]


def pending_of(connection: sqlite3.Connection, schedule: Schedule) -> Tick | None:
    """Return the tick of the schedule that has not fired yet; at most one exists."""
    row = connection.execute(
        f"SELECT {TICK} FROM ticks WHERE schedule_id = ? AND state = 'due' AND NOT by_hand",  # noqa: S608  made of constants
        (schedule.schedule_id,),
    ).fetchone()
    return None if row is None else tick_of(row)


def tick_of_task(connection: sqlite3.Connection, task: TickTask) -> tuple[Schedule, Tick] | None:
    """Return the tick with its schedule."""
    row = connection.execute(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE tick_id = ?",  # noqa: S608  made of constants
        (task.tick_id,),
    ).fetchone()
    return None if row is None else scheduled_tick_of(row)


def overdue_schedules(connection: sqlite3.Connection, now: float, limit: int) -> Sequence[Schedule]:
    """Return the schedules whose next tick has come."""
    rows = connection.execute(
        f"SELECT {SCHEDULE} FROM schedules WHERE next_at <= ? ORDER BY next_at LIMIT ?",  # noqa: S608  made of constants
        (now, limit),
    )
    return [schedule_of(row) for row in rows.fetchall()]


def due_ticks(connection: sqlite3.Connection, now: float, limit: int) -> Sequence[tuple[Schedule, Tick]]:
    """Return the ticks that are due and not claimed."""
    rows = connection.execute(
        f"SELECT {TICK}, {SCHEDULE} FROM ticks JOIN schedules USING (schedule_id) WHERE state = 'due'"  # noqa: S608  made of constants
        " AND retry_at <= ?1 AND ifnull(lease_until, 0) <= ?1 ORDER BY retry_at LIMIT ?2",
        (now, limit),
    )
    return [scheduled_tick_of(row) for row in rows.fetchall()]


def schedules_with_runs(connection: sqlite3.Connection, schedule_ids: Sequence[str]) -> dict[str, str]:
    """Return the unfinished run of each of these schedules that has one."""
    rows = connection.execute(
        "SELECT ticks.schedule_id, runs.run_id FROM ticks JOIN runs USING (run_id)"  # noqa: S608  made of constants
        f" WHERE ticks.schedule_id IN {_LISTED} AND ticks.state = 'fired' AND runs.finished_at IS NULL",
        (json.dumps(list(schedule_ids)),),
    )
    return {row["schedule_id"]: row["run_id"] for row in rows}


def next_at(connection: sqlite3.Connection) -> float | None:
    """Return when there is something to claim next; None when no tick will come."""
    row = connection.execute(
        "SELECT min(at) FROM (SELECT min(next_at) AS at FROM schedules WHERE next_at IS NOT NULL"
        " UNION ALL SELECT min(max(retry_at, ifnull(lease_until, 0))) FROM ticks WHERE state = 'due')"
    ).fetchone()
    return None if row[0] is None else float(row[0])


def update_schedule(connection: sqlite3.Connection, changed: ScheduleUpdate) -> ScheduleView:
    """Write the update, and return the schedule as readers see it. Raises NameTaken."""
    named = find_schedule(connection, changed.schedule.name)
    if named is not None and named.schedule_id != changed.schedule.schedule_id:
        raise NameTaken
    write_update(connection, changed)
    return view_schedule(connection, changed.schedule)


def write_update(connection: sqlite3.Connection, changed: ScheduleUpdate) -> Sequence[SettledTick]:
    """Write a decision's changes, and return the ticks that they settled."""
    _keep(connection, changed.schedule)
    for tick in changed.ended:
        record_tick(connection, tick)
    new = [tick for tick in changed.new if _insert(connection, tick)]
    settled = (tick for tick in (*changed.ended, *new) if tick.state is not TickState.DUE)
    return [settled_of(changed.schedule, tick) for tick in settled]


def record_tick(connection: sqlite3.Connection, tick: Tick) -> None:
    """Write the new state of a tick that was due."""
    connection.execute(
        f"UPDATE ticks SET {', '.join(f'{name} = ?' for name in Tick._fields[1:])}"  # noqa: S608  made of constants
        " WHERE tick_id = ? AND state = 'due'",
        (*tick[1:], tick.tick_id),
    )
    if tick.settled_at is not None:
        _forget_oldest(connection, tick.schedule_id)


def remove_schedule(connection: sqlite3.Connection, schedule: Schedule) -> None:
    """Delete the schedule and its ticks."""
    for table in ("ticks", "schedules"):
        connection.execute(
            f"DELETE FROM {table} WHERE schedule_id = ?",  # noqa: S608  made of constants
            (schedule.schedule_id,),
        )


def forget_ticks(connection: sqlite3.Connection, before: float) -> None:
    """Delete ticks that were settled before that moment."""
    connection.execute("DELETE FROM ticks WHERE settled_at < ?", (before,))


def _keep(connection: sqlite3.Connection, schedule: Schedule) -> None:
    marks = ", ".join("?" * len(schedule))
    connection.execute(f"INSERT OR REPLACE INTO schedules VALUES ({marks})", schedule)  # noqa: S608  made of constants


def _insert(connection: sqlite3.Connection, tick: Tick) -> bool:
    """Insert the tick, and return whether it is new: a tick has one row."""
    marks = ", ".join("?" * len(tick))
    inserted = connection.execute(
        f"INSERT INTO ticks VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608  made of constants
        tick,
    ).rowcount
    if tick.settled_at is not None:
        _forget_oldest(connection, tick.schedule_id)
    return inserted == 1


def _forget_oldest(connection: sqlite3.Connection, schedule_id: str) -> None:
    connection.execute(
        "DELETE FROM ticks WHERE schedule_id = ?1 AND state <> 'due' AND tick_at <= ("
        "SELECT tick_at FROM ticks WHERE schedule_id = ?1 ORDER BY tick_at DESC LIMIT 1 OFFSET ?2)",
        (schedule_id, REMEMBERED_TICKS),
    )
