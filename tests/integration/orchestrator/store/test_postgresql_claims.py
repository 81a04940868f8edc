"""Claims on PostgreSQL never wait for locks of other transactions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from solstice_common.messages.states import RunState
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Claim
from tests.builders import job
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, WORKER, claimed, planned

LOCK_TIMEOUT = "20s"
"""Of a claim that waits for a lock; those held in these tests are held for longer."""


@pytest.fixture
def url(store_database: ScratchDatabase) -> str:
    """The URL of a database in which waiting for a lock fails."""
    store_database.query(f"ALTER DATABASE \"{store_database.name}\" SET lock_timeout = '{LOCK_TIMEOUT}'")
    return store_database.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[JobStore]:
    async with open_store(url) as opened:
        yield opened


@asynccontextmanager
async def row_lock(url: str, statement: str, *arguments: object) -> AsyncIterator[None]:
    """Another transaction is open, and holds the locks of this statement."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            assert await connection.fetch(statement, *arguments)
            yield
    finally:
        await connection.close()


async def waiting_jobs(store: JobStore, *runs: int) -> list[str]:
    """The ids of the jobs of new runs with so many jobs each."""
    ids = []
    for count in runs:
        run_id = await planned(store, *[job("true", name=str(number)) for number in range(count)])
        ids += [view.job_id for view in await store.jobs(run_id=run_id, limit=count)]
    return ids


def ids_of(claims: Sequence[Claim]) -> list[str]:
    return [claim.key.job_id for claim in claims]


async def test_a_locked_job_is_invisible_to_others_and_there_again_afterwards(
    store: JobStore, url: str
) -> None:
    first, second, third = await waiting_jobs(store, 1, 1, 1)
    async with row_lock(url, "SELECT 1 FROM jobs WHERE job_id = $1 FOR UPDATE", second):
        assert ids_of(await claimed(store)) == [first, third]
        assert ids_of(await claimed(store)) == []
    assert ids_of(await claimed(store)) == [second]


async def test_a_finished_job_is_gone(store: JobStore) -> None:
    await waiting_jobs(store, 1)
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, SUCCEEDED)
    assert ids_of(await claimed(store)) == []


async def test_jobs_of_a_run_that_is_being_changed_are_passed_over_until_then(
    store: JobStore, url: str
) -> None:
    ids = await waiting_jobs(store, 2, 1)
    (view,) = [view for view in await store.jobs(limit=9) if view.job_id == ids[0]]
    async with row_lock(url, "SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", view.run_id):
        # Two slots: the first two jobs in line cannot be had, and the third one is as good.
        assert ids_of(await claimed(store, free={"linux": 2})) == ids[2:]
    assert ids_of(await claimed(store)) == ids[:2]


async def test_jobs_of_a_running_run_start_even_while_another_transaction_changes_it(
    store: JobStore, url: str
) -> None:
    ids = await waiting_jobs(store, 3)
    (claim,) = await claimed(store, limit=1)
    async with row_lock(url, "SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", claim.run_id):
        assert ids_of(await claimed(store)) == ids[1:]


async def test_the_only_job_of_a_run_starts_even_while_another_transaction_changes_that_run(
    store: JobStore, url: str
) -> None:
    ids = await waiting_jobs(store, 1)
    (view,) = await store.jobs(limit=9)
    async with row_lock(url, "SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", view.run_id):
        (claim,) = await claimed(store)
        assert ids_of([claim]) == ids
        cancelling = asyncio.create_task(store.cancel_run(view.run_id))
        await asyncio.sleep(0.1)
        assert not cancelling.done()
    # It sees the claim that came before it had the run, so there is a holder to ask now.
    run = await cancelling
    assert run is not None
    assert run.state is RunState.RUNNING
    renewal = await store.renew(WORKER, [claim.key])
    assert renewal.cancelled == {claim.key}


async def test_five_workers_as_fast_as_they_can_share_all_jobs_without_deadlock_or_waiting(
    store: JobStore, url: str, store_database: ScratchDatabase
) -> None:
    runs = [1, 7, 1, 3, 12, 1, 1, 20, 2, 5] * 3
    ids = await waiting_jobs(store, *runs)
    views = {view.job_id: view for view in await store.jobs(limit=1000)}
    # A run of seven jobs that another transaction changes all the time, and the only job of another run.
    stored = ids[1:9]
    all_claims: list[Claim] = []

    async def work(worker: str, own: JobStore) -> None:
        while claims := await own.claim(worker, {"linux": 4}, 4):
            all_claims.extend(claims)
            await own.renew(worker, [claim.key for claim in claims])
            ends = await asyncio.gather(*[own.finish(claim.key, SUCCEEDED) for claim in claims])
            assert all(ends)

    async def work_while_there_is_any(worker: str, own: JobStore) -> None:
        # A claim skips jobs that another transaction is changing, and finds them a moment later.
        async with own.changes() as changed:
            while len(all_claims) < len(ids) - len(stored):
                changed.clear()
                await work(worker, own)
                if len(all_claims) < len(ids) - len(stored):
                    await changed.wait()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            row_lock(url, "SELECT 1 FROM runs WHERE run_id = $1 FOR UPDATE", views[stored[0]].run_id)
        )
        await stack.enter_async_context(
            row_lock(url, "SELECT 1 FROM jobs WHERE job_id = $1 FOR UPDATE", stored[-1])
        )
        stores = [await stack.enter_async_context(open_store(url)) for _ in range(5)]
        async with asyncio.timeout(120), asyncio.TaskGroup() as workers:
            for number, own in enumerate(stores):
                workers.create_task(work_while_there_is_any(f"worker-{number}", own), name=f"worker-{number}")
    assert len(all_claims) == len(set(ids_of(all_claims)))
    assert sorted(ids_of(all_claims)) == sorted({*ids} - {*stored})
    assert sorted(ids_of(await store.claim(WORKER, {"linux": 9}, 9))) == sorted(stored)
    (row,) = store_database.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert row["deadlocks"] == 0
