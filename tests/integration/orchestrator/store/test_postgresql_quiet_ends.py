"""A run of one job begins and succeeds on PostgreSQL without touching an index."""

import asyncio
from typing import Final

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import RunState
from solstice_orchestrator.store import open_store
from tests.builders import job
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, claimed, planned

RUNS: Final = 4
"""All versions of so many rows fit on a page."""


def versions(database: ScratchDatabase) -> tuple[int, int]:
    """How many updates of runs there were, and how many of them touched no index."""
    database.await_silence()
    (row,) = database.query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'runs'")
    return row["n_tup_upd"], row["n_tup_hot_upd"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["ended where it was claimed", "ended elsewhere"])
async def test_a_run_that_begins_and_succeeds_touches_no_index(
    postgresql_database: ScratchDatabase, *, elsewhere: bool
) -> None:
    url = postgresql_database.url
    async with open_store(url) as store:
        for _ in range(RUNS):
            await planned(store, job("true"))
    before = versions(postgresql_database)
    async with open_store(url) as store, open_store(url) as other:
        claims = await claimed(store)
        ending = other if elsewhere else store
        assert all(await asyncio.gather(*[ending.finish(claim.key, SUCCEEDED) for claim in claims]))
        found = await store.runs(limit=9, state=RunState.SUCCEEDED)
        assert len(found.runs) == len(claims) == RUNS
    after = versions(postgresql_database)
    new, without_entries = (now - then for now, then in zip(after, before, strict=True))
    # One for each: its beginning was no version of its own.
    assert (new, without_entries) == (RUNS, RUNS)


async def test_runs_of_which_an_older_version_has_not_counted_the_jobs_are_listed(
    postgresql_database: ScratchDatabase,
) -> None:
    async with open_store(postgresql_database.url) as store:
        first = await planned(store, job("true", priority=Priority.HIGH))
        second = await planned(store, job("true"))
        await asyncio.to_thread(postgresql_database.query, "UPDATE runs SET job_count = 0")
        (claim,) = await claimed(store, limit=1)
        assert claim.run_id == first
        for state, run_id in ((RunState.RUNNING, first), (RunState.WAITING, second)):
            assert [run.run_id for run in (await store.runs(limit=9, state=state)).runs] == [run_id]
        assert await store.finish(claim.key, SUCCEEDED)
        assert (await store.runs(limit=9, state=RunState.RUNNING)).runs == []
