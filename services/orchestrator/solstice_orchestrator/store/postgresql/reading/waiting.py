"""Reads from the PostgreSQL store why a job waits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from solstice_orchestrator.queue_times.waits import COUNTED, WaitFacts
from solstice_orchestrator.store.decisions import wait_walk
from solstice_orchestrator.store.decisions.wait_facts import planning_facts
from solstice_orchestrator.store.postgresql.supersede import members_of
from solstice_orchestrator.store.postgresql.tables import start_limits, worker_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction

if TYPE_CHECKING:
    import asyncpg


async def planning(transaction: PostgreSQLTransaction, run_id: str) -> WaitFacts | None:
    run = await transaction.connection.fetchrow(
        "SELECT runs.*, requests.repository, requests.created_at FROM runs JOIN requests USING (run_id)"
        " WHERE runs.run_id = $1 AND runs.state IN ('delayed', 'planning')",
        run_id,
    )
    if run is None:
        return None
    now = await transaction.now()
    workers = await worker_table.workers(transaction.connection, now, transaction.rules.lease_seconds)
    return planning_facts(run, now, workers)


async def waiting(transaction: PostgreSQLTransaction, job_id: str) -> WaitFacts | None:
    """Return the facts about one job."""
    loads = wait_walk.waiting(job_id, transaction.rules)
    loaded: Any = None
    try:
        while True:
            loaded = await _load(transaction, loads.send(loaded))
    except StopIteration as end:
        facts: WaitFacts | None = end.value
        return facts


async def _load(transaction: PostgreSQLTransaction, load: wait_walk.Load) -> Any:
    connection, rules = transaction.connection, transaction.rules
    match load:
        case wait_walk.LoadRows(query, values):
            loaded: Any = await connection.fetch(_ROWS[query], *values)
        case wait_walk.LoadNow():
            loaded = await transaction.now()
        case wait_walk.LoadGroup(group):
            loaded = await members_of(transaction, group)
        case wait_walk.LoadBudget():
            loaded = await start_limits.load_budget(connection, rules, transaction.test_now)
        case wait_walk.LoadAhead():
            loaded = await _ahead(transaction, load)
        case wait_walk.LoadWorkers():
            loaded = await worker_table.workers(connection, await transaction.now(), rules.lease_seconds)
    return loaded


async def _ahead(transaction: PostgreSQLTransaction, load: wait_walk.LoadAhead) -> "asyncpg.Record | None":
    job, facts = load.job, load.facts
    common = (
        facts.runs_on,
        facts.job_id,
        list(load.others.repositories),
        facts.repository,
        COUNTED,
        list(load.others.owners),
        facts.owner,
    )
    if load.is_late:
        return await transaction.connection.fetchrow(_AHEAD_OF_LATE, *common, facts.since)
    before = facts.now - transaction.rules.max_wait_seconds
    return await transaction.connection.fetchrow(_AHEAD, *common, before, job["priority"], job["start_tag"])


_RUNNING: Final = (
    "SELECT run_id, job_id, name, repository, worker_id, started_at FROM jobs"
    " WHERE state = 'running' AND {} = $1 ORDER BY started_at, job_id LIMIT $2"
)
_ROWS: Final[Mapping[wait_walk.WaitQuery, str]] = {
    wait_walk.WaitQuery.JOB: "SELECT * FROM jobs WHERE job_id = $1",
    wait_walk.WaitQuery.RUN: "SELECT * FROM runs WHERE run_id = $1",
    wait_walk.WaitQuery.JOBS_OF_RUN: "SELECT job_id, name, state FROM jobs WHERE run_id = $1 ORDER BY position",
    wait_walk.WaitQuery.UNFINISHED_JOBS: "SELECT job_id FROM jobs WHERE run_id = $1 AND finished_at IS NULL LIMIT $2",
    wait_walk.WaitQuery.RECENT: "SELECT repository, finished_at - started_at AS seconds FROM jobs"
    " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = $1 AND started_at IS NOT NULL"
    " ORDER BY finished_at DESC LIMIT $2",
    wait_walk.WaitQuery.RUNNING_OF_REPOSITORY: _RUNNING.format("repository"),
    wait_walk.WaitQuery.RUNNING_OF_OWNER: _RUNNING.format("owner"),
    wait_walk.WaitQuery.RUNNING_OF_LABEL: _RUNNING.format("runs_on"),
}
_IN_LINE: Final = (
    "SELECT job_id, repository, owner FROM jobs WHERE state = 'waiting' AND runs_on = $1 AND job_id <> $2"
    " AND repository <> ALL($3::text[]) AND owner <> ALL($6::text[])"
)


def _counted(*conditions: str) -> str:
    """Count the jobs ahead; each condition is the beginning of an index.

    Reading stops as soon as enough were seen.
    """
    each_part = [f"(SELECT * FROM ({_IN_LINE} AND {each} LIMIT $5) AS ahead)" for each in conditions]  # noqa: S608  made of constants
    parts = " UNION ".join(each_part)
    return (
        "SELECT count(*) AS jobs, count(*) FILTER (WHERE repository = $4) AS own,"  # noqa: S608  made of constants
        f" count(*) FILTER (WHERE owner = $7) AS owned FROM ({parts}) AS jobs"
    )


_AHEAD_OF_LATE: Final = _counted("waiting_since < $8", "waiting_since = $8 AND job_id < $2")
_AHEAD: Final = _counted(
    "waiting_since < $8",
    "priority < $9",
    "priority = $9 AND start_tag < $10",
    "priority = $9 AND start_tag = $10 AND job_id < $2",
)
