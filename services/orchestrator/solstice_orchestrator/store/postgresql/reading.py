"""What readers see."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from solstice_orchestrator.jobs import JobState, RunState
from solstice_orchestrator.store.postgresql.transaction import job_state
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

if TYPE_CHECKING:
    from solstice_common.postgresql import Connection

_RUN: Final = (
    "SELECT runs.*, requests.created_at, requests.rerun_of, requests.body AS request"
    " FROM runs JOIN requests USING (run_id)"
)


async def runs(
    connection: "Connection",
    *,
    limit: int,
    after: str | None,
    repository: str | None,
    state: RunState | None,
) -> Page:
    """Newest first; the cursor is the id of the last run of a page."""
    where, values = _where(
        ("runs.run_id < {}", after),
        ("requests.repository = {}", repository),
        # The unfinished are few among all that ever were, and have an index of their own.
        (
            "runs.ended = {}" if state is None or state.final else "runs.ended IS NULL AND runs.state = {}",
            state and state.value,
        ),
    )
    rows = await connection.fetch(
        f"{_RUN} {where} ORDER BY runs.run_id DESC LIMIT {limit + 1:d}",
        *values,
    )
    views = [run_view(row) for row in rows[:limit]]
    return Page(runs=views, next=views[-1].run_id if len(rows) > limit and views else None)


async def run(connection: "Connection", run_id: str) -> RunView | None:
    row = await connection.fetchrow(f"{_RUN} WHERE runs.run_id = $1", run_id)
    return None if row is None else run_view(row)


async def run_of_request(connection: "Connection", request_id: str) -> RunView | None:
    """Also for the id of a request that was a duplicate of another."""
    row = await connection.fetchrow(
        f"{_RUN} WHERE runs.run_id = ("  # noqa: S608  made of constants
        "SELECT run_id FROM requests WHERE request_key = $1"
        " UNION ALL SELECT run_id FROM request_aliases WHERE request_key = $1 LIMIT 1)",
        key(request_id),
    )
    return None if row is None else run_view(row)


async def jobs(
    connection: "Connection", *, run_id: str | None, state: JobState | None, limit: int
) -> Sequence[JobView]:
    """Of one run in workflow order, else newest first."""
    # Spelled out, not a parameter: it names the partial index that holds such jobs.
    of_state = None if state is None else f"state = '{state.value}'"
    if state is not None and state.final:
        of_state = f"{of_state} AND finished_at IS NOT NULL"
    where, values = _where(("run_id = {}", run_id))
    if of_state is not None:
        where = f"{where} AND {of_state}" if where else f"WHERE {of_state}"
    order = "job_id DESC" if run_id is None else "position"
    rows = await connection.fetch(
        f"SELECT * FROM jobs {where} ORDER BY {order} LIMIT {limit:d}",  # noqa: S608  made of the constants above
        *values,
    )
    return [job_view(row) for row in rows]


async def job(connection: "Connection", job_id: str) -> JobView | None:
    row = await connection.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)
    return None if row is None else job_view(row)


async def attempts(connection: "Connection", job_id: str) -> Sequence[AttemptView]:
    """Those that ended, and the one that runs, which stands in its job's row."""
    rows = await connection.fetch(
        "SELECT number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail"
        " FROM attempts WHERE job_id = $1"
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


def _where(*conditions: tuple[str, Any]) -> tuple[str, list[Any]]:
    """The conditions that are asked for."""
    asked = [(text, value) for text, value in conditions if value is not None]
    text = " AND ".join(text.format(f"${number}") for number, (text, _) in enumerate(asked, start=1))
    return (f"WHERE {text}" if text else "", [value for _, value in asked])
