"""What readers see."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from solstice_orchestrator.jobs import JobState, RunState
from solstice_orchestrator.scheduling import rank
from solstice_orchestrator.store.attempts import ENDED_ATTEMPTS
from solstice_orchestrator.store.postgresql.columns import BEGUN_AT
from solstice_orchestrator.store.postgresql.transaction import job_state
from solstice_orchestrator.store.rows import attempt_view, job_view, key, run_view
from solstice_orchestrator.store.views import (
    AttemptView,
    JobFilters,
    JobView,
    LogChunk,
    LogPage,
    LogPlace,
    LogState,
    Page,
    RunFilters,
    RunView,
)

if TYPE_CHECKING:
    import asyncpg

    from solstice_common.postgresql import Connection

_RUN: Final = (
    f"SELECT runs.*, {BEGUN_AT} AS begun_at, requests.created_at, requests.rerun_of, requests.body AS request"  # noqa: S608  made of constants
    " FROM runs JOIN requests USING (run_id)"
)


_HAS_JOB: Final = (
    "EXISTS (SELECT FROM jobs WHERE jobs.run_id = runs.run_id"
    " AND runs_on = coalesce({}, runs_on) AND priority = coalesce({}, priority))"
)
_POSITION: Final = "(SELECT position FROM jobs WHERE job_id = {})"


_IS: Final[Mapping[RunState | None, str]] = {
    RunState.WAITING: f"runs.ended IS NULL AND runs.state = {{}} AND {BEGUN_AT} IS NULL",
    RunState.RUNNING: f"runs.ended IS NULL AND (runs.state = {{}} OR {BEGUN_AT} IS NOT NULL)",
}


async def runs(
    connection: "Connection", *, limit: int, after: str | None, **wanted: Unpack[RunFilters]
) -> Page:
    """Newest first; the cursor is the id of the last run of a page."""
    state, priority = wanted.get("state"), wanted.get("priority")
    where, values = _where(
        ("runs.run_id < {}", after),
        ("requests.repository = {}", wanted.get("repository")),
        ("requests.ref = {}", wanted.get("ref")),
        # The unfinished are few among all that ever were, and have an index of their own.
        (
            _IS.get(
                state,
                "runs.ended = {}"
                if state is None or state.final
                else "runs.ended IS NULL AND runs.state = {}",
            ),
            state and state.value,
        ),
        (_HAS_JOB, wanted.get("label"), None if priority is None else rank(priority)),
    )
    rows = await connection.fetch(
        f"{_RUN} {where} ORDER BY runs.run_id DESC LIMIT {limit + 1:d}",
        *values,
    )
    views = [run_of(row) for row in rows[:limit]]
    return Page(runs=views, next=views[-1].run_id if len(rows) > limit and views else None)


def run_of(row: "asyncpg.Record") -> RunView:
    """From the columns of `_RUN`, which say what a run is that began with its job (changes.py, `begun_with`)."""
    view, begun_at = run_view(row), row["begun_at"]
    if begun_at is None:
        return view
    started_at = begun_at if view.started_at is None else view.started_at
    return replace(view, state=RunState.RUNNING, started_at=started_at)


async def run(connection: "Connection", run_id: str) -> RunView | None:
    row = await connection.fetchrow(f"{_RUN} WHERE runs.run_id = $1", run_id)
    return None if row is None else run_of(row)


async def run_of_request(connection: "Connection", request_id: str) -> RunView | None:
    """Also for the id of a request that was a duplicate of another."""
    row = await connection.fetchrow(
        f"{_RUN} WHERE runs.run_id = ("  # noqa: S608  made of constants
        "SELECT run_id FROM requests WHERE request_key = $1"
        " UNION ALL SELECT run_id FROM request_aliases WHERE request_key = $1 LIMIT 1)",
        key(request_id),
    )
    return None if row is None else run_of(row)


async def jobs(
    connection: "Connection",
    *,
    limit: int,
    run_id: str | None,
    after: str | None,
    **wanted: Unpack[JobFilters],
) -> Sequence[JobView]:
    """Of one run in workflow order, else newest first."""
    state, priority = wanted.get("state"), wanted.get("priority")
    filters = (
        ("repository = {}", wanted.get("repository")),
        ("ref = {}", wanted.get("ref")),
        ("runs_on = {}", wanted.get("label")),
        ("priority = {}", None if priority is None else rank(priority)),
    )
    if run_id is not None:
        where, values = _where(
            ("run_id = {}", run_id), ("state = {}", state), ("position > " + _POSITION, after), *filters
        )
        query = f"SELECT * FROM jobs {where} ORDER BY position LIMIT {limit:d}"  # noqa: S608  made of the constants above
    elif state is None and not any(value is not None for _, value in filters):
        where, values = _where(("job_id < {}", after))
        query = f"SELECT * FROM jobs {where} ORDER BY job_id DESC LIMIT {limit:d}"  # noqa: S608  the same
    else:
        # One part per partial index that holds such jobs, each of which walks no further than it must. The states are
        # spelled out, not parameters: they name these indexes.
        where, values = _where(("job_id < {}", after), *filters)
        parts = [
            f"(SELECT * FROM jobs {where or 'WHERE true'} AND {condition} ORDER BY job_id DESC LIMIT {limit:d})"  # noqa: S608  the same
            for condition in (map(_in_state, [state] if state else JobState))
        ]
        union = " UNION ALL ".join(parts)
        query = f"SELECT * FROM ({union}) AS found ORDER BY job_id DESC LIMIT {limit:d}"  # noqa: S608  the same
    return [job_view(row) for row in await connection.fetch(query, *values)]


def _in_state(state: JobState) -> str:
    return f"state = '{state.value}'{' AND finished_at IS NOT NULL' if state.final else ''}"


async def job(connection: "Connection", job_id: str) -> JobView | None:
    row = await connection.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)
    return None if row is None else job_view(row)


async def attempts(connection: "Connection", job_id: str) -> Sequence[AttemptView]:
    """Those that ended, and the one that runs, which stands in its job's row."""
    rows = await connection.fetch(
        "SELECT number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail"  # noqa: S608  made of constants
        f" FROM {ENDED_ATTEMPTS} WHERE job_id = $1"
        " UNION ALL SELECT attempt, worker_id, state, reason, started_at, NULL, NULL, NULL, ''"
        " FROM jobs WHERE job_id = $1 AND state = 'running' ORDER BY 1",
        job_id,
    )
    return [attempt_view(row) for row in rows]


async def log(
    connection: "Connection", job_id: str, *, attempt: int | None, after: int, limit: int
) -> LogPage | None:
    """Chunks after `after`; one more is read than is shown, to know whether the page holds the last."""
    row = await connection.fetchrow("SELECT state, attempt FROM jobs WHERE job_id = $1", job_id)
    if row is None:
        return None
    number = row["attempt"] if attempt is None else attempt
    # Of a job that has not ended, every attempt that has stands there.
    ended = await connection.fetchval(
        "SELECT true FROM attempts WHERE job_id = $1 AND number = $2", job_id, number
    )
    over = bool(ended) or job_state(row["state"]).final
    rows = await connection.fetch(
        "SELECT sequence, at, data FROM log_chunks WHERE job_id = $1 AND attempt = $2 AND sequence > $3"
        " ORDER BY sequence LIMIT $4",
        job_id,
        number,
        after,
        limit + 1,
    )
    chunks = [LogChunk(sequence=each["sequence"], at=each["at"], data=each["data"]) for each in rows[:limit]]
    state = LogState.CLOSED if over and len(rows) <= limit else LogState.OPEN
    return LogPage(attempt=number, chunks=chunks, state=state)


async def log_place(connection: "Connection", job_id: str, *, attempt: int, byte: int) -> LogPlace:
    """The lengths of chunks are read without the chunks."""
    of_log = "FROM log_chunks WHERE job_id = $1 AND attempt = $2"
    total = int(await connection.fetchval(f"SELECT coalesce(sum(length(data)), 0) {of_log}", job_id, attempt))
    start = byte if byte >= 0 else max(0, total + byte)
    row = await connection.fetchrow(
        "SELECT sequence, until - size AS begins FROM (SELECT sequence, length(data) AS size,"  # noqa: S608  made of constants
        f" sum(length(data)) OVER (ORDER BY sequence) AS until {of_log}) AS sized"
        " WHERE until > $3 ORDER BY sequence LIMIT 1",
        job_id,
        attempt,
        start,
    )
    sequence, begins = (1, 0) if row is None else (row["sequence"], int(row["begins"]))
    return LogPlace(total=total, start=start, sequence=sequence, begins=begins)


async def counts(connection: "Connection") -> Mapping[tuple[JobState, str], int]:
    rows = await connection.fetch(
        " UNION ALL ".join(
            f"SELECT state, runs_on, count(*) AS jobs FROM jobs WHERE {condition} GROUP BY state, runs_on"  # noqa: S608  made of constants
            for condition in (
                "state = 'waiting'",
                "state = 'running'",
                "state IN ('blocked', 'backoff', 'approval')",
            )
        )
    )
    return {(job_state(row["state"]), row["runs_on"]): row["jobs"] for row in rows}


async def backlog(connection: "Connection", most: int) -> int:
    return int(
        await connection.fetchval(
            "SELECT least($1::bigint, (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 'waiting' LIMIT $1) AS jobs)"
            " + (SELECT count(*) FROM (SELECT FROM runs WHERE to_plan LIMIT $1) AS runs))",
            most,
        )
    )


def _where(*conditions: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The conditions (a text and its values) that are asked for: those of which a value is not None."""
    asked = [(text, values) for text, *values in conditions if any(value is not None for value in values)]
    numbers = itertools.count(1)
    text = " AND ".join(text.format(*(f"${next(numbers)}" for _ in values)) for text, values in asked)
    return (f"WHERE {text}" if text else "", [value for _, values in asked for value in values])
