"""On PostgreSQL a late holder is fenced off, also when clocks disagree."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Claim, LastChunks
from solstice_orchestrator.store.views import LogChunk
from tests.servers.postgresql import ScratchDatabase
from tests.stores import SUCCEEDED, WORKER, running

LEASE = 60.0
WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
OTHER_HOLDER = "UPDATE jobs SET attempt = attempt + 1, worker_id = 'another' WHERE job_id = $1"
Write = Callable[[JobStore, Claim], Awaitable[object]]


@pytest.fixture
async def store(store_database: ScratchDatabase) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url, lease_seconds=LEASE) as opened:
        yield opened


async def append(store: JobStore, claim: Claim) -> object:
    return await store.append_log(claim.key, [LogChunk(sequence=1, at=1.0, data=b"late")])


async def finish(store: JobStore, claim: Claim) -> object:
    logs = [LastChunks(chunks=[LogChunk(sequence=1, at=1.0, data=b"late")])]
    return await store.finish(claim.key, SUCCEEDED, logs)


async def renew(store: JobStore, claim: Claim) -> object:
    return claim.key not in (await store.renew(WORKER, [claim.key])).lost


@pytest.mark.parametrize("late", [append, finish, renew], ids=lambda write: write.__name__)
async def test_who_loses_an_attempt_while_writing_changes_nothing_and_learns_it(
    store: JobStore, store_database: ScratchDatabase, late: Write
) -> None:
    claim = await running(store)
    rescuer = await asyncpg.connect(store_database.url)
    try:
        rescuing = rescuer.transaction()
        await rescuing.start()
        await rescuer.execute(OTHER_HOLDER, claim.key.job_id)
        writing = asyncio.ensure_future(late(store, claim))
        async with asyncio.timeout(30):
            while not (writing.done() or await a_session_waits_for_a_lock(store_database)):  # noqa: ASYNC110  locks of other sessions send no notification
                await asyncio.sleep(0.01)
        await rescuing.commit()
    finally:
        await rescuer.close()
    assert await writing is False
    job = await store.job(claim.key.job_id)
    assert job is not None
    assert (job.state, job.attempt, job.worker_id) == (JobState.RUNNING, 2, "another")
    page = await store.log(claim.key.job_id, attempt=1)
    assert page is not None
    assert list(page.chunks) == []


async def test_a_rerun_waits_for_no_change_of_the_run(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    claim = await running(store)
    other = await asyncpg.connect(store_database.url)
    try:
        async with other.transaction(), asyncio.timeout(10):
            await other.execute("SELECT FROM runs WHERE run_id = $1 FOR NO KEY UPDATE", claim.run_id)
            await other.execute("SELECT FROM jobs WHERE run_id = $1 FOR NO KEY UPDATE", claim.run_id)
            again = await store.rerun(claim.run_id)
            assert await store.rerun_failed(claim.run_id) is RerunRefusal.NOT_ENDED
    finally:
        await other.close()
    assert again is not None
    assert again.rerun_of == claim.run_id


async def a_session_waits_for_a_lock(database: ScratchDatabase) -> bool:
    """Whether a session waits for a lock.

    The query has a connection of its own: within a transaction, such as the rescuer's, statistics stand
    still.
    """
    return bool(await asyncio.to_thread(database.query, WAITING))


async def age(database: ScratchDatabase, seconds: float) -> None:
    """Make everything this much older, since the database's clock runs by itself."""
    await asyncio.to_thread(
        database.query,
        "UPDATE jobs SET lease_until = lease_until - $1 WHERE lease_until IS NOT NULL",
        seconds,
    )
    await asyncio.to_thread(database.query, "UPDATE workers SET seen_at = seen_at - $1", seconds)


async def test_leases_end_by_the_databases_clock(store: JobStore, store_database: ScratchDatabase) -> None:
    claim = await running(store)
    await age(store_database, LEASE - 10)
    assert await store.rescue() == []
    await age(store_database, 10)
    assert await store.rescue() == [claim.key]
    (attempt,) = await store.attempts(claim.key.job_id)
    assert attempt.reason is Reason.AGENT_LOST
