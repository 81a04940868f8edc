"""Reads runs, jobs, attempts and logs as readers see them."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, Unpack

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.queue_times.waits import WaitingClass
from solstice_orchestrator.scheduling.order import PRIORITY_ORDER, rank
from solstice_orchestrator.store.records.job_listing import jobs_query, logged_services_query, where_clause
from solstice_orchestrator.store.records.rows import attempt_view, chunk_of, job_view, key, run_view
from solstice_orchestrator.store.sqlite.tables.transaction import REQUEST
from solstice_orchestrator.store.views import (
    AttemptView,
    JobFilters,
    JobView,
    LogByte,
    LogPage,
    LogState,
    Page,
    RunFilters,
    RunView,
)

_HAS_JOB: Final = (
    "EXISTS (SELECT 1 FROM jobs WHERE jobs.run_id = runs.run_id"
    " AND runs_on = ifnull({}, runs_on) AND priority = ifnull({}, priority))"
)


def runs(
    connection: sqlite3.Connection, *, limit: int, after: str | None, **filters: Unpack[RunFilters]
) -> Page:
    """Return runs, newest first; the cursor is the id of a page's last run."""
    state, priority = filters.get("state"), filters.get("priority")
    conditions = {
        "state": state and state.value,
        "repository": filters.get("repository"),
        "ref": filters.get("ref"),
    }
    # Few runs are unfinished, but a repository or a branch may have any number. The plus keeps other indexes out.
    order = conditions if state is not None and not state.final else ("repository", "ref", "state")
    first = next((name for name in order if conditions[name] is not None), None)
    where, values = where_clause(
        "?",
        ("run_id < {}", after),
        *((f"{'' if name == first else '+'}{name} = {{}}", value) for name, value in conditions.items()),
        (_HAS_JOB, filters.get("label"), None if priority is None else rank(priority)),
    )
    rows = connection.execute(
        f"SELECT *, {REQUEST} FROM runs {where} ORDER BY run_id DESC LIMIT {limit + 1:d}",  # noqa: S608  made of the constants above
        values,
    ).fetchall()
    views = [run_view(row) for row in rows[:limit]]
    return Page(runs=views, next=views[-1].run_id if len(rows) > limit and views else None)


def run_counts(
    connection: sqlite3.Connection, first: str | None, repository: str | None, ref: str | None
) -> Mapping[RunState, int]:
    """Return how many runs are in each state, from the id `first` on."""
    where, values = where_clause(
        "?", ("run_id >= {}", first), ("+repository = {}", repository), ("+ref = {}", ref)
    )
    rows = connection.execute(f"SELECT state, count(*) AS runs FROM runs {where} GROUP BY state", values)  # noqa: S608  made of constants
    return {RunState(row["state"]): row["runs"] for row in rows}


def run(connection: sqlite3.Connection, run_id: str) -> RunView | None:
    row = connection.execute(
        f"SELECT *, {REQUEST} FROM runs WHERE run_id = ?",  # noqa: S608  made of constants
        (run_id,),
    ).fetchone()
    return None if row is None else run_view(row)


def run_of_request(connection: sqlite3.Connection, request_id: str) -> RunView | None:
    """Return the run of a request; also of a duplicate's request id."""
    row = connection.execute(
        f"SELECT *, {REQUEST} FROM runs WHERE request_key = ?1"  # noqa: S608  made of constants
        " OR run_id = (SELECT run_id FROM request_aliases WHERE request_key = ?1)",
        (key(request_id),),
    ).fetchone()
    return None if row is None else run_view(row)


def jobs(
    connection: sqlite3.Connection,
    *,
    limit: int,
    run_id: str | None,
    after: str | None,
    **filters: Unpack[JobFilters],
) -> Sequence[JobView]:
    """Return the jobs of one run in workflow order, else newest first."""
    query, values = jobs_query("?", limit=limit, run_id=run_id, after=after, **filters)
    return [job_view(row) for row in connection.execute(query, values)]


def job(connection: sqlite3.Connection, job_id: str) -> JobView | None:
    row = connection.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return None if row is None else job_view(row)


def attempts(connection: sqlite3.Connection, job_id: str) -> Sequence[AttemptView]:
    """Return the ended attempts and the running one, which is in its job's row."""
    rows = connection.execute(
        "SELECT number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail, image,"
        " provisioning_seconds"
        " FROM attempts WHERE job_id = ?1"
        " UNION ALL SELECT attempt, worker_id, state, reason, started_at, NULL, NULL, NULL, '', image,"
        " provisioning_seconds"
        " FROM jobs WHERE job_id = ?1 AND state = 'running' ORDER BY 1",
        (job_id,),
    )
    return [attempt_view(row) for row in rows]


def log(
    connection: sqlite3.Connection,
    job_id: str,
    *,
    attempt: int | None,
    after: int,
    limit: int,
    service: str = "",
) -> LogPage | None:
    """Return the chunks after `after`.

    One more is read than is shown, to know whether the page holds the last.
    """
    row = connection.execute("SELECT state, attempt FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    if row is None:
        return None
    number = row["attempt"] if attempt is None else attempt
    log_row = connection.execute(
        "SELECT finished_at FROM attempts WHERE job_id = ? AND number = ?", (job_id, number)
    ).fetchone()
    over = JobState(row["state"]).final if log_row is None else log_row["finished_at"] is not None
    table = "log_chunks LEFT JOIN log_marks USING (job_id, attempt, sequence)"
    rows = connection.execute(
        f"SELECT sequence, at, data, kind FROM {'service_log_chunks' if service else table}"  # noqa: S608  made of constants
        f" WHERE job_id = ? AND attempt = ?{' AND service = ?' if service else ''} AND sequence > ?"
        " ORDER BY sequence LIMIT ?",
        (job_id, number, *([service] if service else []), after, limit + 1),
    ).fetchall()
    chunks = [chunk_of(each) for each in rows[:limit]]
    state = LogState.CLOSED if over and len(rows) <= limit else LogState.OPEN
    return LogPage(attempt=number, chunks=chunks, state=state)


def logged_services(connection: sqlite3.Connection, job_id: str, *, attempt: int) -> Sequence[str]:
    """Return the names of the services that have a log."""
    rows = connection.execute(logged_services_query("?"), (job_id, attempt))
    return [row["service"] for row in rows]


def log_byte(connection: sqlite3.Connection, job_id: str, *, attempt: int, byte: int) -> LogByte:
    """Return where a byte is; only the lengths of chunks are read."""
    of_log = "FROM log_chunks WHERE job_id = ? AND attempt = ?"
    (total,) = connection.execute(
        f"SELECT ifnull(sum(length(data)), 0) {of_log}",
        (job_id, attempt),
    ).fetchone()
    start = byte if byte >= 0 else max(0, total + byte)
    row = connection.execute(
        "SELECT sequence, until - size FROM (SELECT sequence, length(data) AS size,"  # noqa: S608  made of constants
        f" sum(length(data)) OVER (ORDER BY sequence) AS until {of_log}) WHERE until > ? ORDER BY sequence LIMIT 1",
        (job_id, attempt, start),
    ).fetchone()
    sequence, begins = row or (1, 0)
    return LogByte(total=total, start=start, sequence=sequence, begins=begins)


def counts(connection: sqlite3.Connection) -> Mapping[tuple[JobState, str], int]:
    rows = connection.execute(
        "SELECT state, runs_on, count(*) AS jobs FROM jobs WHERE finished_at IS NULL GROUP BY state, runs_on"
    )
    return {(JobState(row["state"]), row["runs_on"]): row["jobs"] for row in rows}


def waiting_classes(connection: sqlite3.Connection, now: float) -> Mapping[Priority, WaitingClass]:
    rows = connection.execute(
        "SELECT priority, count(*) AS jobs, min(waiting_since) AS since FROM jobs"
        " WHERE state = 'waiting' GROUP BY priority"
    )
    return {PRIORITY_ORDER[row["priority"]]: WaitingClass(row["jobs"], now - row["since"]) for row in rows}


def backlog(connection: sqlite3.Connection, most: int) -> int:
    row = connection.execute(
        "SELECT min(?1, (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE state = 'waiting' LIMIT ?1)) + (SELECT count(*)"
        " FROM (SELECT 1 FROM runs WHERE state = 'planning' AND plan_worker IS NULL LIMIT ?1))) AS backlog",
        (most,),
    ).fetchone()
    return int(row["backlog"])
