"""Lists runs and jobs by filters: newest first, a page at a time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack

from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.identifiers import lowest_id
from solstice_orchestrator.scheduling.order import rank
from solstice_orchestrator.store.postgresql.reading.views_of_runs import RUN, run_of
from solstice_orchestrator.store.postgresql.tables.columns import BEGUN_AT
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.records.job_listing import Condition, jobs_query, where_clause
from solstice_orchestrator.store.records.rows import job_view
from solstice_orchestrator.store.views import JobFilters, JobView, Page, RunFilters

if TYPE_CHECKING:
    import asyncpg

    from solstice_common.storage.postgresql import Connection

    Rows = Sequence[asyncpg.Record]

WALKED: Final = 1000
"""How many of the newest runs are searched for waiting ones, before jobs are searched."""

# The offset keeps the planner from starting with the jobs, of which there may be any number.
_HAS_JOB: Final = (
    "EXISTS (SELECT FROM jobs WHERE jobs.run_id = runs.run_id"
    " AND runs_on = coalesce({}, runs_on) AND priority = coalesce({}, priority) OFFSET 0)"
)
_JOBS_OF: Final[Mapping[RunState, Sequence[str]]] = {
    RunState.WAITING: ("state = 'waiting'", "state IN ('blocked', 'backoff', 'approval')"),
    RunState.RUNNING: ("state = 'running'",),
}
"""The states of the only job of a run in each state, as in `jobs.run_state`.

Each condition names a partial index.
"""


async def runs(
    connection: "Connection", *, limit: int, after: str | None, **filters: Unpack[RunFilters]
) -> Page:
    """Return runs, newest first; the cursor is the id of a page's last run."""
    match filters.get("state"):
        case RunState.WAITING:
            rows = await _waiting(connection, limit + 1, after, filters)
        case RunState.RUNNING:
            rows = await _by_jobs(connection, limit + 1, after, filters, RunState.RUNNING)
        case _:
            rows = await _by_index(connection, limit + 1, after, filters)
    views = [run_of(row) for row in rows[:limit]]
    return Page(runs=views, next=views[-1].run_id if len(rows) > limit and views else None)


async def _by_index(connection: "Connection", most: int, after: str | None, filters: RunFilters) -> "Rows":
    """Return runs of all states, or of a state with an index in list order.

    SUCCEEDED needs no index: most runs end so.
    """
    state = filters.get("state")
    match state:
        case RunState.DELAYED:
            ways = ["due_at IS NOT NULL AND runs.state = {}"]
        case RunState.PLANNING:
            ways = ["to_plan AND runs.state = {}", "plan_worker IS NOT NULL AND runs.state = {}"]
        case None | RunState.SUCCEEDED:
            ways = ["runs.state = {}"]
        case _:
            ways = ["unsuccessful = {}"]
    parts = []
    for way in ways:
        where, values = where_clause("$", ("runs.run_id < {}", after), (way, state), *_filters(filters))
        parts.append(_walk(where, most))
    return await connection.fetch(_first(parts, most), *values)


async def _waiting(connection: "Connection", most: int, after: str | None, filters: RunFilters) -> "Rows":
    """Return waiting runs among the newest, then as many by their jobs as fit.

    Thousands may wait, and then the newest fill a page; or else their jobs are few.
    """
    of = next((name for name in ("repository", "ref") if filters.get(name) is not None), "")
    below, values = where_clause("$", ("run_id < {}", after), (f"{of} = {{}}", filters.get(of)))
    newest = f"SELECT run_id FROM requests {below} ORDER BY run_id DESC"  # noqa: S608  made of constants
    waits = f"runs.state = {{}} AND {BEGUN_AT} IS NULL"
    where, more = where_clause("$", (waits, RunState.WAITING), *_filters(filters), first=len(values) + 1)
    rows = await connection.fetch(_among(f"{newest} LIMIT {WALKED:d}", where, most), *values, *more)
    if len(rows) == most:
        return rows
    last = await connection.fetchval(f"{newest} OFFSET {WALKED - 1:d} LIMIT 1", *values)
    if last is None:
        return rows
    return [*rows, *await _by_jobs(connection, most - len(rows), last, filters, RunState.WAITING)]


async def _by_jobs(
    connection: "Connection", most: int, after: str | None, filters: RunFilters, state: RunState
) -> "Rows":
    """Return runs that wait or run, found by their jobs.

    Runs of several jobs have an index; a run of one job is found by this job, which is in the same state. An index of
    such runs would change with each run that ends; and their rows do not say that they have begun.
    """
    where, values = where_clause("$", ("runs.run_id < {}", after), *_filters(filters))
    where = where or "WHERE true"
    of_jobs, more = where_clause("$", *_of_repository(filters), first=len(values) + 1)
    jobs = " UNION ALL ".join(
        f"SELECT run_id FROM jobs {of_jobs or 'WHERE true'} AND {condition}"  # noqa: S608  made of constants
        for condition in _JOBS_OF[state]
    )
    # In a separate step: else the planner might walk through all jobs before the cursor.
    open_runs = f"WITH open AS MATERIALIZED ({jobs})"
    of_one = _among("SELECT run_id FROM open ORDER BY run_id DESC", f"{where} AND NOT of_several", most)
    of_several = _walk(f"{where} AND of_several AND runs.state = '{state.value}'", most)
    return await connection.fetch(f"{open_runs} {_first([of_one, of_several], most)}", *values, *more)


def _walk(where: str, most: int) -> str:
    """Return the query for the newest runs that meet the conditions."""
    return f"{RUN} {where} ORDER BY runs.run_id DESC LIMIT {most:d}"


def _among(ids: str, where: str, most: int) -> str:
    """Return the same query for the runs that the statement `ids` names.

    It must name them in the order of the list; no more of them are read than needed.
    """
    return (
        f"SELECT found.* FROM ({ids}) AS ids CROSS JOIN LATERAL"  # noqa: S608  made of constants
        f" ({RUN} {where} AND runs.run_id = ids.run_id OFFSET 0) AS found"
        f" ORDER BY ids.run_id DESC LIMIT {most:d}"
    )


def _first(parts: Sequence[str], most: int) -> str:
    """Return the query for the newest runs that these statements find."""
    union = " UNION ALL ".join(f"({part})" for part in parts)
    return f"SELECT * FROM ({union}) AS found ORDER BY run_id DESC LIMIT {most:d}"  # noqa: S608  made of constants


def _filters(filters: RunFilters) -> Sequence[Condition]:
    """Return the conditions of all filters but the state."""
    priority = filters.get("priority")
    return [
        *((f"requests.{text}", value) for text, value in _of_repository(filters)),
        (_HAS_JOB, filters.get("label"), None if priority is None else rank(priority)),
    ]


def _of_repository(filters: RunFilters) -> Sequence[Condition]:
    """Return the conditions on columns that requests and jobs share."""
    return [("repository = {}", filters.get("repository")), ("ref = {}", filters.get("ref"))]


async def jobs(
    connection: "Connection",
    *,
    limit: int,
    run_id: str | None,
    after: str | None,
    **filters: Unpack[JobFilters],
) -> Sequence[JobView]:
    """Return the jobs of one run in workflow order, else newest first."""
    query, values = jobs_query("$", limit=limit, run_id=run_id, after=after, **filters)
    return [job_view(row) for row in await connection.fetch(query, *values)]


async def run_counts(
    transaction: PostgreSQLTransaction, since_seconds: float | None, repository: str | None, ref: str | None
) -> Mapping[RunState, int]:
    """Return how many runs of the last `since_seconds` are in each state."""
    first = None if since_seconds is None else lowest_id(await transaction.now() - since_seconds)
    where, values = where_clause(
        "$",
        ("runs.run_id >= {}", first),
        ("requests.repository = {}", repository),
        ("requests.ref = {}", ref),
    )
    rows = await transaction.connection.fetch(
        f"SELECT state, count(*) AS runs FROM runs JOIN requests USING (run_id) {where} GROUP BY state",  # noqa: S608  made of constants
        *values,
    )
    return {RunState(row["state"]): row["runs"] for row in rows}
