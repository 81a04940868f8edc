"""Takes back attempts and planning whose leases ran out, in the PostgreSQL store."""

from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.store.decisions.claim import end_backoffs
from solstice_orchestrator.store.decisions.rescue import rescue_expired
from solstice_orchestrator.store.postgresql.supersede import requested_groups
from solstice_orchestrator.store.postgresql.tables import worker_table
from solstice_orchestrator.store.postgresql.tables.columns import NOW
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, load_runs, write
from solstice_orchestrator.store.protocol import AttemptKey

RESCUED_AT_ONCE: Final = 100
"""Runs per transaction: thousands may be lost with one worker, and other transactions wait for the locks."""


async def rescue(transaction: PostgreSQLTransaction) -> tuple[Sequence[AttemptKey], bool]:
    """End expired attempts and planning of some runs; return whether others may remain."""
    rows = await transaction.connection.fetch(
        _FORSAKEN,
        transaction.test_now,
        transaction.rules.lease_seconds,
        transaction.rules.planning_seconds,
        RESCUED_AT_ONCE,
    )
    transaction.groups.update(await requested_groups(transaction))
    if not rows:
        await worker_table.forget_workers(
            transaction.connection, await transaction.now(), transaction.rules.lease_seconds
        )
        return [], False
    unit = await load_runs(transaction, [row["run_id"] for row in rows])
    end_backoffs(unit)
    seen = {
        row["worker_id"]: row["seen_at"]
        for row in await transaction.connection.fetch("SELECT worker_id, seen_at FROM workers")
    }
    rescued = rescue_expired(unit, seen)
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
