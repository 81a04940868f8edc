"""What readers see."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from solstice_orchestrator.jobs import JobState, RunState
from solstice_orchestrator.store.protocol import (
    AttemptView,
    JobView,
    LogChunk,
    LogPage,
    LogState,
    Page,
    RunView,
)
from solstice_orchestrator.store.rows import attempt_view, job_view, key, run_view
from solstice_orchestrator.store.sqlite.transaction import REQUEST


def runs(
    connection: sqlite3.Connection,
    *,
    limit: int,
    after: str | None,
    repository: str | None,
    state: RunState | None,
) -> Page:
    """Newest first; the cursor is the id of the last run of a page."""
    # The plus keeps the index of repositories out: few runs are unfinished, and a repository may have any number.
    of_repository = "repository = ?" if state is None or state.final else "+repository = ?"
    where, values = _where(
        ("run_id < ?", after), (of_repository, repository), ("state = ?", state and state.value)
    )
    rows = connection.execute(
        f"SELECT *, {REQUEST} FROM runs {where} ORDER BY run_id DESC LIMIT ?",  # noqa: S608  made of the constants above
        (*values, limit + 1),
    ).fetchall()
    views = [run_view(row) for row in rows[:limit]]
    return Page(runs=views, next=views[-1].run_id if len(rows) > limit and views else None)


def run(connection: sqlite3.Connection, run_id: str) -> RunView | None:
    row = connection.execute(
        f"SELECT *, {REQUEST} FROM runs WHERE run_id = ?",  # noqa: S608  made of constants
        (run_id,),
    ).fetchone()
    return None if row is None else run_view(row)


def run_of_request(connection: sqlite3.Connection, request_id: str) -> RunView | None:
    """Also for the id of a request that was a duplicate of another."""
    row = connection.execute(
        f"SELECT *, {REQUEST} FROM runs WHERE request_key = ?1"  # noqa: S608  made of constants
        " OR run_id = (SELECT run_id FROM request_aliases WHERE request_key = ?1)",
        (key(request_id),),
    ).fetchone()
    return None if row is None else run_view(row)


def jobs(
    connection: sqlite3.Connection, *, run_id: str | None, state: JobState | None, limit: int
) -> Sequence[JobView]:
    """Of one run in workflow order, else newest first."""
    ended = None if state is None else f"finished_at IS {'NOT ' if state.final else ''}NULL"
    where, values = _where(("run_id = ?", run_id), ("state = ?", state and state.value))
    if ended is not None:
        where = f"{where} AND {ended}"  # names the partial index that holds such jobs
    order = "age DESC" if run_id is None else "position"
    rows = connection.execute(
        f"SELECT * FROM jobs {where} ORDER BY {order} LIMIT ?",  # noqa: S608  made of the constants above
        (*values, limit),
    )
    return [job_view(row) for row in rows]


def job(connection: sqlite3.Connection, job_id: str) -> JobView | None:
    row = connection.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return None if row is None else job_view(row)


def attempts(connection: sqlite3.Connection, job_id: str) -> Sequence[AttemptView]:
    """Those that ended, and the one that runs, which stands in its job's row."""
    rows = connection.execute(
        "SELECT number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail"
        " FROM attempts WHERE job_id = ?1"
        " UNION ALL SELECT attempt, worker_id, state, reason, started_at, NULL, NULL, NULL, ''"
        " FROM jobs WHERE job_id = ?1 AND state = 'running' ORDER BY 1",
        (job_id,),
    )
    return [attempt_view(row) for row in rows]


def log(
    connection: sqlite3.Connection, job_id: str, *, attempt: int | None, after: int, limit: int
) -> LogPage | None:
    """Chunks after `after`; one more is read than is shown, to know whether the page holds the last."""
    row = connection.execute("SELECT state, attempt FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    if row is None:
        return None
    number = row["attempt"] if attempt is None else attempt
    found = connection.execute(
        "SELECT finished_at FROM attempts WHERE job_id = ? AND number = ?", (job_id, number)
    ).fetchone()
    over = JobState(row["state"]).final if found is None else found["finished_at"] is not None
    rows = connection.execute(
        "SELECT sequence, at, data FROM log_chunks WHERE job_id = ? AND attempt = ? AND sequence > ?"
        " ORDER BY sequence LIMIT ?",
        (job_id, number, after, limit + 1),
    ).fetchall()
    chunks = [LogChunk(sequence=each["sequence"], at=each["at"], data=each["data"]) for each in rows[:limit]]
    state = LogState.CLOSED if over and len(rows) <= limit else LogState.OPEN
    return LogPage(attempt=number, chunks=chunks, state=state)


def counts(connection: sqlite3.Connection) -> Mapping[tuple[JobState, str], int]:
    rows = connection.execute(
        "SELECT state, runs_on, count(*) AS jobs FROM jobs WHERE finished_at IS NULL GROUP BY state, runs_on"
    )
    return {(JobState(row["state"]), row["runs_on"]): row["jobs"] for row in rows}


def backlog(connection: sqlite3.Connection, most: int) -> int:
    row = connection.execute(
        "SELECT min(?1, (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE state = 'waiting' LIMIT ?1)) + (SELECT count(*)"
        " FROM (SELECT 1 FROM runs WHERE state = 'planning' AND plan_worker IS NULL LIMIT ?1))) AS backlog",
        (most,),
    ).fetchone()
    return int(row["backlog"])


def _where(*conditions: tuple[str, Any]) -> tuple[str, list[Any]]:
    """The conditions that are asked for."""
    asked = [(text, value) for text, value in conditions if value is not None]
    text = " AND ".join(text for text, _ in asked)
    return (f"WHERE {text}" if text else "", [value for _, value in asked])
