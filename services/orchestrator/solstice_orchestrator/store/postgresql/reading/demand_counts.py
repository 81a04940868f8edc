"""Reads from the PostgreSQL store how much work there is."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solstice_orchestrator.queue_times.demand import DemandFacts, RunningJob, WaitingJobs
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.store.decisions.wait_facts import RECENT, samples_of
from solstice_orchestrator.store.postgresql.tables import start_limits, worker_table
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction, job_state

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection


async def demand(transaction: PostgreSQLTransaction, within_seconds: float, label: str | None) -> DemandFacts:
    connection, rules, now = transaction.connection, transaction.rules, await transaction.now()
    waiting = [
        WaitingJobs(
            label=row["runs_on"], repository=row["repository"], jobs=row["jobs"], oldest=row["oldest"]
        )
        for row in await connection.fetch(
            "SELECT runs_on, repository, count(*) AS jobs, min(waiting_since) AS oldest FROM jobs"  # noqa: S608  made of constants
            f" WHERE state = 'waiting' {'' if label is None else 'AND runs_on = $1'} GROUP BY runs_on, repository",
            *([] if label is None else [label]),
        )
    ]
    running = [
        RunningJob(label=row["runs_on"], repository=row["repository"], started_at=row["started_at"])
        for row in await connection.fetch(
            "SELECT runs_on, repository, started_at FROM jobs WHERE state = 'running'"
        )
    ]
    labels = {each.label for each in waiting} | {each.label for each in running}
    return DemandFacts(
        now=now,
        waiting=waiting,
        running=running,
        held_back={
            (job_state(row["state"]), row["runs_on"]): row["jobs"]
            for row in await connection.fetch(
                "SELECT state, runs_on, count(*) AS jobs FROM jobs"
                " WHERE state IN ('blocked', 'backoff', 'approval') GROUP BY state, runs_on"
            )
        },
        delayed=await delayed(connection, now + within_seconds),
        workers=await worker_table.workers(connection, now, rules.lease_seconds),
        starts=await start_limits.load_budget(connection, rules, transaction.test_now),
        recent=await _recent(connection, [each for each in labels if label in {None, each}]),
    )


async def delayed(connection: "Connection", until: float) -> Mapping[str | None, int]:
    """Count the runs that begin by that moment, per label that their requests name."""
    rows = await connection.fetch(
        "SELECT runs_on, count(*) AS runs FROM runs WHERE due_at <= $1 GROUP BY runs_on", until
    )
    return {row["runs_on"]: row["runs"] for row in rows}


async def count_delayed(connection: "Connection") -> int:
    """Count all delayed runs."""
    return int(await connection.fetchval("SELECT count(*) FROM runs WHERE due_at IS NOT NULL"))


async def next_due(connection: "Connection") -> float | None:
    """Return when the first delayed run begins."""
    due = await connection.fetchval("SELECT min(due_at) FROM runs WHERE due_at IS NOT NULL")
    return None if due is None else float(due)


async def _recent(connection: "Connection", labels: Sequence[str]) -> Mapping[str, Sequence[Sample]]:
    rows = await connection.fetch(
        "SELECT label, recent.repository, recent.seconds FROM unnest($1::text[]) AS labels (label) CROSS JOIN LATERAL ("
        "SELECT repository, finished_at - started_at AS seconds FROM jobs"
        " WHERE state IN ('succeeded', 'failed', 'timed_out') AND runs_on = label AND started_at IS NOT NULL"
        " ORDER BY finished_at DESC LIMIT $2) AS recent",
        list(labels),
        RECENT,
    )
    by_label: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_label[row["label"]].append(row)
    return {label: samples_of(rows_of_label) for label, rows_of_label in by_label.items()}
