"""Renews leases, stores logs and ends attempts in the PostgreSQL store; rescues expired ones."""

from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store.decisions import finish as ends
from solstice_orchestrator.store.decisions.claim import end_backoffs
from solstice_orchestrator.store.decisions.lease import renewal
from solstice_orchestrator.store.decisions.rescue import rescue as decide_rescue
from solstice_orchestrator.store.postgresql.supersede import groups_asked_for
from solstice_orchestrator.store.postgresql.tables import workers
from solstice_orchestrator.store.postgresql.tables.columns import NOW
from solstice_orchestrator.store.postgresql.tables.transaction import (
    PostgreSQLTransaction,
    attempts_of,
    load_jobs,
    load_runs,
    write,
)
from solstice_orchestrator.store.protocol import AttemptKey, Renewal
from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.records.rows import kind_column
from solstice_orchestrator.store.views import LogChunk

RESCUED_AT_ONCE: Final = 100
"""Runs per transaction: thousands may be lost with one worker, and other transactions wait for the locks."""


async def renew(transaction: PostgreSQLTransaction, worker_id: str, claimed: Sequence[AttemptKey]) -> Renewal:
    """Renew the worker's leases; return which it lost and which must end."""
    now = await transaction.now()
    renewed = await _prolong(transaction, worker_id, claimed, now) if claimed else {}
    # After the jobs, in the order of a transaction that ends a job and counts it against the worker: else a deadlock.
    worker = await workers.record_heartbeat(transaction.connection, worker_id, now)
    gone = [key for key in claimed if key not in renewed]
    ended = await _ends(transaction, gone) if gone else {}
    return renewal(claimed, renewed, ended, worker, now)


async def _prolong(
    transaction: PostgreSQLTransaction, worker_id: str, claimed: Sequence[AttemptKey], now: float
) -> Mapping[AttemptKey, bool]:
    """Renew leases; return the attempts still held, and whether each must end."""
    rows = await transaction.connection.fetch(
        # Locked in the common order, before anything is changed.
        "WITH held AS MATERIALIZED (SELECT job_id FROM jobs"
        " JOIN unnest($1::text[], $2::integer[]) AS ours (job_id, attempt) USING (job_id, attempt)"
        " WHERE worker_id = $3 AND state = 'running' ORDER BY run_id, position FOR NO KEY UPDATE OF jobs)"
        " UPDATE jobs SET lease_until = $4 FROM held WHERE jobs.job_id = held.job_id"
        " RETURNING jobs.job_id, jobs.attempt, jobs.cancel_asked",
        [key.job_id for key in claimed],
        [key.number for key in claimed],
        worker_id,
        now + transaction.rules.lease_seconds,
    )
    return {
        AttemptKey(job_id=row["job_id"], number=row["attempt"]): bool(row["cancel_asked"]) for row in rows
    }


async def _ends(
    transaction: PostgreSQLTransaction, keys: Sequence[AttemptKey]
) -> Mapping[AttemptKey, Reason]:
    """Return the reasons of those of these attempts that ended."""
    past = await _past(transaction, keys)
    return {key: past[key].reason for key in keys if key in past}


async def _past(
    transaction: PostgreSQLTransaction, keys: Sequence[AttemptKey]
) -> Mapping[AttemptKey, Attempt]:
    """Return all ended attempts at the jobs of these attempts."""
    return {
        AttemptKey(job_id=attempt.job_id, number=attempt.number): attempt
        for attempt in await attempts_of(transaction, [key.job_id for key in keys])
    }


async def append_log(transaction: PostgreSQLTransaction, key: AttemptKey, chunks: Sequence[LogChunk]) -> bool:
    """Store those of `chunks` that are new."""
    # This lock waits for a transaction that is ending the attempt, and then finds it ended.
    claimed = await transaction.connection.fetchval(
        "SELECT true FROM jobs WHERE job_id = $1 AND attempt = $2 AND state = 'running' FOR SHARE",
        key.job_id,
        key.number,
    )
    if not claimed:
        return False
    await transaction.connection.execute(
        "INSERT INTO log_chunks SELECT $1, $2, *"
        " FROM unnest($3::integer[], $4::double precision[], $5::bytea[], $6::text[])"
        " ON CONFLICT DO NOTHING",
        key.job_id,
        key.number,
        [chunk.sequence for chunk in chunks],
        [chunk.at for chunk in chunks],
        [chunk.data for chunk in chunks],
        [kind_column(chunk) for chunk in chunks],
    )
    transaction.changed = True
    return True


async def finish(transaction: PostgreSQLTransaction, group: Sequence[ends.AttemptEnd]) -> Sequence[bool]:
    """Record the ends of attempts; True also when this same end was recorded before."""
    unit = await load_jobs(transaction, {key.job_id for key, _ in group})
    past = await _past(transaction, ends.ended_attempts(unit, group))
    answers = ends.finish(unit, group, past)
    await write(transaction, unit.changes())
    return answers


async def rescue(transaction: PostgreSQLTransaction) -> tuple[Sequence[AttemptKey], bool]:
    """End expired attempts and planning of some runs; return whether others may remain."""
    rows = await transaction.connection.fetch(
        _FORSAKEN,
        transaction.test_now,
        transaction.rules.lease_seconds,
        transaction.rules.planning_seconds,
        RESCUED_AT_ONCE,
    )
    transaction.groups.update(await groups_asked_for(transaction))
    if not rows:
        await workers.forget_workers(
            transaction.connection, await transaction.now(), transaction.rules.lease_seconds
        )
        return [], False
    unit = await load_runs(transaction, [row["run_id"] for row in rows])
    end_backoffs(unit)
    seen = {
        row["worker_id"]: row["seen_at"]
        for row in await transaction.connection.fetch("SELECT worker_id, seen_at FROM workers")
    }
    rescued = decide_rescue(unit, seen)
    await write(transaction, unit.changes())
    return rescued, len(rows) == RESCUED_AT_ONCE and transaction.changed


_FORSAKEN: Final = f"""
WITH moment AS MATERIALIZED (SELECT coalesce($1::double precision, {NOW}) AS now)
SELECT run_id FROM (
    SELECT run_id FROM moment, jobs WHERE state = 'running' AND lease_until <= moment.now
    UNION
    SELECT run_id FROM moment, jobs WHERE state = 'backoff' AND retry_at <= moment.now
    UNION
    SELECT run_id FROM moment, runs WHERE overdue_at <= moment.now
    UNION
    SELECT run_id FROM moment, runs LEFT JOIN workers ON worker_id = plan_worker
    WHERE state = 'planning' AND plan_worker IS NOT NULL
        AND (seen_at IS NULL OR seen_at <= moment.now - $2::double precision
             OR plan_since <= moment.now - $3::double precision)
) AS forsaken ORDER BY run_id LIMIT $4
"""  # noqa: S608  made of constants
