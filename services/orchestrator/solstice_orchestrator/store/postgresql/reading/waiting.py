"""Reads from the PostgreSQL store why a job waits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.queue_times.waits import COUNTED, Holder, WaitFacts
from solstice_orchestrator.scheduling.order import overdue
from solstice_orchestrator.store.decisions.wait_facts import (
    HOLDERS,
    IN_LINE,
    MAX_JOBS_READ,
    RECENT,
    ahead_of,
    exclusions_for,
    group_of,
    holder_of,
    job_facts,
    needs_of,
    owner_starts_of_hour,
    planning_facts,
    samples_of,
    throttle_keys,
)
from solstice_orchestrator.store.postgresql.supersede import members_of
from solstice_orchestrator.store.postgresql.tables import start_limits
from solstice_orchestrator.store.postgresql.tables import worker_table as workers_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction

if TYPE_CHECKING:
    import asyncpg

Seen = dict[str, WaitFacts | None]


async def planning(transaction: PostgreSQLTransaction, run_id: str) -> WaitFacts | None:
    run = await transaction.connection.fetchrow(
        "SELECT runs.*, requests.repository, requests.created_at FROM runs JOIN requests USING (run_id)"
        " WHERE runs.run_id = $1 AND runs.state IN ('delayed', 'planning')",
        run_id,
    )
    if run is None:
        return None
    now = await transaction.now()
    workers = await workers_table.workers(transaction.connection, now, transaction.rules.lease_seconds)
    return planning_facts(run, now, workers)


async def waiting(
    transaction: PostgreSQLTransaction, job_id: str, seen: Seen | None = None
) -> WaitFacts | None:
    """Return the facts about one job.

    `seen` collects the jobs that were read on the way to a blocked one.
    """
    job = await transaction.connection.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)
    if job is None:
        return None
    facts = job_facts(job, await transaction.now())
    if facts.state is JobState.BLOCKED:
        return await _blocked(transaction, job, facts, {} if seen is None else seen)
    if facts.state in IN_LINE:
        return await _in_line(transaction, job, facts)
    if seen is not None and facts.state is JobState.RUNNING:
        return replace(facts, recent=await _recent(transaction, facts.runs_on))
    return facts


async def _others(
    transaction: PostgreSQLTransaction, job_ids: Sequence[str], seen: Seen
) -> Sequence[WaitFacts | None]:
    """Return the facts about these jobs; each is read once, at most MAX_JOBS_READ in all."""
    facts_of_others: list[WaitFacts | None] = []
    for job_id in job_ids:
        if job_id not in seen and len(seen) < MAX_JOBS_READ:
            seen[job_id] = None
            seen[job_id] = await waiting(transaction, job_id, seen)
        facts_of_others.append(seen.get(job_id))
    return facts_of_others


async def _blocked(
    transaction: PostgreSQLTransaction, job: "asyncpg.Record", facts: WaitFacts, seen: Seen
) -> WaitFacts:
    connection = transaction.connection
    facts = replace(facts, recent=await _recent(transaction, facts.runs_on))
    run = await connection.fetchrow("SELECT * FROM runs WHERE run_id = $1", facts.run_id)
    membership = None if run is None else group_of(job, run)
    if membership is not None:
        group, holder = membership
        name, ahead = ahead_of(await members_of(transaction, group), holder, facts.repository)
        jobs = await _jobs_of(transaction, ahead[0]) if ahead else ()
        return replace(
            facts, group=name, group_ahead=ahead, group_jobs=await _others(transaction, jobs, seen)
        )
    siblings = await connection.fetch(
        "SELECT job_id, name, state FROM jobs WHERE run_id = $1 ORDER BY position", facts.run_id
    )
    needs = needs_of(job, siblings)
    others = await _others(transaction, [need.job_id for need in needs], seen)
    return replace(facts, needs=[replace(need, facts=each) for need, each in zip(needs, others, strict=True)])


async def _jobs_of(transaction: PostgreSQLTransaction, holder: Holder) -> Sequence[str]:
    """Return the unfinished jobs of a group's holder."""
    if holder.job_id is not None:
        return (holder.job_id,)
    rows = await transaction.connection.fetch(
        "SELECT job_id FROM jobs WHERE run_id = $1 AND finished_at IS NULL LIMIT $2",
        holder.run_id,
        MAX_JOBS_READ + 1,
    )
    return [row["job_id"] for row in rows]


async def _recent(transaction: PostgreSQLTransaction, label: str) -> Sequence[Sample]:
    rows = await transaction.connection.fetch(
        "SELECT repository, finished_at - started_at AS seconds FROM jobs"
        " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = $1 AND started_at IS NOT NULL"
        " ORDER BY finished_at DESC LIMIT $2",
        label,
        RECENT,
    )
    return samples_of(rows)


async def _in_line(transaction: PostgreSQLTransaction, job: "asyncpg.Record", facts: WaitFacts) -> WaitFacts:
    connection, rules = transaction.connection, transaction.rules
    cap = rules.limits.caps.cap(facts.repository)
    owner_cap = rules.limits.quotas.slots.cap(facts.owner) if facts.owner else None
    starts = await start_limits.load_budget(connection, rules, transaction.test_now)
    others = exclusions_for(starts, facts)
    common = (
        facts.runs_on,
        facts.job_id,
        list(others.repositories),
        facts.repository,
        COUNTED,
        list(others.owners),
        facts.owner,
    )
    if facts.state is JobState.WAITING and overdue(facts.since, facts.now, rules.max_wait_seconds):
        ahead = await connection.fetchrow(_AHEAD_OF_LATE, *common, facts.since)
    else:
        before = facts.now - rules.max_wait_seconds
        ahead = await connection.fetchrow(_AHEAD, *common, before, job["priority"], job["turn"])
    return replace(
        facts,
        ahead=min(ahead["jobs"], COUNTED) if ahead else 0,
        ahead_of_repository=ahead["own"] if ahead else 0,
        ahead_of_owner=ahead["owned"] if ahead else 0,
        cap=cap,
        running_of_repository=()
        if cap is None
        else await _holders(transaction, "repository = $1", facts.repository),
        owner_cap=owner_cap,
        running_of_owner=() if owner_cap is None else await _holders(transaction, "owner = $1", facts.owner),
        owner_hour=owner_starts_of_hour(starts, facts.owner),
        running=await _holders(transaction, "runs_on = $1", facts.runs_on),
        workers=await workers_table.workers(connection, facts.now, rules.lease_seconds),
        throttles=starts.throttles(throttle_keys(facts)),
        recent=await _recent(transaction, facts.runs_on),
    )


async def _holders(transaction: PostgreSQLTransaction, which: str, value: str) -> Sequence[Holder]:
    rows = await transaction.connection.fetch(
        "SELECT run_id, job_id, name, repository, worker_id, started_at FROM jobs"  # noqa: S608  made of constants
        f" WHERE state = 'running' AND {which} ORDER BY started_at, job_id LIMIT $2",
        value,
        HOLDERS,
    )
    return [holder_of(row) for row in rows]


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
    "priority = $9 AND turn < $10",
    "priority = $9 AND turn = $10 AND job_id < $2",
)
