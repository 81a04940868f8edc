"""Reads single runs, jobs and logs as readers see them, and counts them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.queue_times.waits import WaitingClass
from solstice_orchestrator.scheduling.order import PRIORITY_ORDER
from solstice_orchestrator.store.postgresql.tables.columns import BEGUN_AT
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, job_state
from solstice_orchestrator.store.records.attempts import ENDED_ATTEMPTS
from solstice_orchestrator.store.records.job_listing import logged_services_query
from solstice_orchestrator.store.records.rows import attempt_view, chunk_of, job_view, key, run_view
from solstice_orchestrator.store.views import (
    AttemptView,
    JobView,
    LogByte,
    LogPage,
    LogState,
    RunView,
)

if TYPE_CHECKING:
    import asyncpg

    from solstice_common.storage.postgresql import Connection

RUN: Final = (
    f"SELECT runs.*, {BEGUN_AT} AS begun_at, requests.created_at, requests.rerun_of, requests.body AS request"  # noqa: S608  made of constants
    " FROM runs JOIN requests USING (run_id)"
)


def run_of(row: "asyncpg.Record") -> RunView:
    """Return the view of a row with the columns of `RUN`.

    These columns show the true state of a run that began with its job (changes.py, `begun_with`).
    """
    view, begun_at = run_view(row), row["begun_at"]
    if begun_at is None:
        return view
    started_at = begun_at if view.started_at is None else view.started_at
    return replace(view, state=RunState.RUNNING, started_at=started_at)


async def run(connection: "Connection", run_id: str) -> RunView | None:
    row = await connection.fetchrow(f"{RUN} WHERE runs.run_id = $1", run_id)
    return None if row is None else run_of(row)


async def run_of_request(connection: "Connection", request_id: str) -> RunView | None:
    """Return the run of a request; also of a duplicate's request id."""
    row = await connection.fetchrow(
        f"{RUN} WHERE runs.run_id = ("  # noqa: S608  made of constants
        "SELECT run_id FROM requests WHERE request_key = $1"
        " UNION ALL SELECT run_id FROM request_aliases WHERE request_key = $1 LIMIT 1)",
        key(request_id),
    )
    return None if row is None else run_of(row)


async def job(connection: "Connection", job_id: str) -> JobView | None:
    row = await connection.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)
    return None if row is None else job_view(row)


async def attempts(connection: "Connection", job_id: str) -> Sequence[AttemptView]:
    """Return the ended attempts and the running one, which is in its job's row."""
    rows = await connection.fetch(
        "SELECT number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail, image,"  # noqa: S608  made of constants
        " provisioning_seconds"
        f" FROM {ENDED_ATTEMPTS} WHERE job_id = $1"
        " UNION ALL SELECT attempt, worker_id, state, reason, started_at, NULL, NULL, NULL, '', image,"
        " provisioning_seconds"
        " FROM jobs WHERE job_id = $1 AND state = 'running' ORDER BY 1",
        job_id,
    )
    return [attempt_view(row) for row in rows]


async def log(
    connection: "Connection",
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
    row = await connection.fetchrow("SELECT state, attempt FROM jobs WHERE job_id = $1", job_id)
    if row is None:
        return None
    number = row["attempt"] if attempt is None else attempt
    # Every ended attempt of an unfinished job has its row there.
    ended = await connection.fetchval(
        "SELECT true FROM attempts WHERE job_id = $1 AND number = $2", job_id, number
    )
    over = bool(ended) or job_state(row["state"]).final
    rows = await connection.fetch(
        f"SELECT sequence, at, data, kind FROM {'service_log_chunks' if service else 'log_chunks'}"  # noqa: S608  made of constants
        f" WHERE job_id = $1 AND attempt = $2 AND sequence > $3{' AND service = $5' if service else ''}"
        " ORDER BY sequence LIMIT $4",
        job_id,
        number,
        after,
        limit + 1,
        *([service] if service else []),
    )
    chunks = [chunk_of(each) for each in rows[:limit]]
    state = LogState.CLOSED if over and len(rows) <= limit else LogState.OPEN
    return LogPage(attempt=number, chunks=chunks, state=state)


async def logged_services(connection: "Connection", job_id: str, *, attempt: int) -> Sequence[str]:
    """Return the names of the services that have a log."""
    rows = await connection.fetch(logged_services_query("$"), job_id, attempt)
    return [row["service"] for row in rows]


async def log_byte(connection: "Connection", job_id: str, *, attempt: int, byte: int) -> LogByte:
    """Return where a byte is; only the lengths of chunks are read."""
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
    return LogByte(total=total, start=start, sequence=sequence, begins=begins)


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


async def waiting_classes(transaction: PostgreSQLTransaction) -> Mapping[Priority, WaitingClass]:
    rows = await transaction.connection.fetch(
        "SELECT priority, count(*) AS jobs, min(waiting_since) AS since FROM jobs"
        " WHERE state = 'waiting' GROUP BY priority"
    )
    now = await transaction.now()
    return {PRIORITY_ORDER[row["priority"]]: WaitingClass(row["jobs"], now - row["since"]) for row in rows}


async def backlog(connection: "Connection", most: int) -> int:
    return int(
        await connection.fetchval(
            "SELECT least($1::bigint, (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 'waiting' LIMIT $1) AS jobs)"
            " + (SELECT count(*) FROM (SELECT FROM runs WHERE to_plan LIMIT $1) AS runs))",
            most,
        )
    )
