"""Runs that are planned at once share transactions on PostgreSQL."""

import asyncio
from typing import Final

from solstice_orchestrator.store import open_store
from tests.builders import job, job_request
from tests.servers.postgresql import ScratchDatabase
from tests.stores import WORKER

RUNS: Final = 80


def commits(database: ScratchDatabase) -> int:
    """How many transactions were committed by sessions that have ended."""
    database.await_silence()
    (row,) = database.server_query(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = $1", database.name
    )
    return int(row["xact_commit"])


async def test_runs_planned_at_once_share_transactions(postgresql_database: ScratchDatabase) -> None:
    """Each transaction that adds jobs to a queue waits for the one before it."""
    async with open_store(postgresql_database.url) as store:
        await store.admit([job_request(ref=f"refs/heads/{number}") for number in range(RUNS)])
    before = commits(postgresql_database)
    async with open_store(postgresql_database.url) as store:
        tasks = await store.claim_planning(WORKER, RUNS)
        assert all(await asyncio.gather(*[store.planned(task, [job("true")]) for task in tasks]))
        assert len(await store.jobs(limit=2 * RUNS)) == RUNS
    assert commits(postgresql_database) - before < RUNS / 2
