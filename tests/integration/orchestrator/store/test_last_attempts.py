"""On PostgreSQL an ended job's row stores its last attempt, without a second row."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.admin.check import check
from solstice_orchestrator.store.admin.record import recorded_runs
from solstice_orchestrator.store.protocol import AttemptKey
from tests.builders import job
from tests.servers.postgresql import ScratchDatabase
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    SUCCEEDED,
    claimed,
    planned,
    retries_after,
    running,
)

OLDER = """
INSERT INTO attempts (job_id, number, worker_id, state, reason, started_at, finished_at, exit_code, step, detail)
SELECT job_id, attempt, worker_id, state, reason, started_at, finished_at, exit_code, step, detail FROM jobs
"""
"""The extra row that an older version wrote when an attempt ended with its job."""


@pytest.fixture
async def store(store_database: ScratchDatabase) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url, retries=retries_after(0.0)) as opened:
        yield opened


async def written(database: ScratchDatabase) -> list[tuple[int, str, str]]:
    """The attempts that have rows of their own."""
    rows = await asyncio.to_thread(
        database.query, "SELECT number, state, reason FROM attempts ORDER BY job_id, number"
    )
    return [(row["number"], row["state"], row["reason"]) for row in rows]


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
@pytest.mark.parametrize("names", [["alone"], ["one", "other"]], ids=["at once", "with locks"])
async def test_a_plain_end_writes_no_row(
    store: JobStore, store_database: ScratchDatabase, names: Sequence[str], outcome: Outcome
) -> None:
    await planned(store, *[job("true", name=name) for name in names])
    for claim in await claimed(store):
        assert await store.finish(claim.key, outcome)
        (attempt,) = await store.attempts(claim.key.job_id)
        assert attempt.state is outcome.state
    assert await written(store_database) == []


async def test_a_cancelled_attempt_writes_no_row(store: JobStore, store_database: ScratchDatabase) -> None:
    claim = await running(store)
    await store.cancel_job(claim.key.job_id)
    assert await store.finish(claim.key, CANCELLED)
    assert await written(store_database) == []
    assert len(await store.attempts(claim.key.job_id)) == 1


async def test_what_goes_on_or_ends_with_other_words_is_written(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    claim = await running(store, job("true", retries=1))
    for outcome in (RELEASED, CHECKOUT_ERRORED, FAILED):
        assert await store.finish(claim.key, outcome)
        await store.rescue()
        (claim,) = await claimed(store)
    await store.cancel_job(claim.key.job_id)
    assert await store.finish(claim.key, CHECKOUT_ERRORED)
    view = await store.job(claim.key.job_id)
    assert view is not None
    assert view.state is JobState.CANCELLED
    rows = await written(store_database)
    assert rows == [
        (number, outcome.state, outcome.reason)
        for number, outcome in enumerate([RELEASED, CHECKOUT_ERRORED, FAILED, CHECKOUT_ERRORED], 1)
    ]
    attempts = await store.attempts(claim.key.job_id)
    assert [(each.number, each.state, each.reason) for each in attempts] == rows


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
async def test_what_an_older_version_wrote_is_reported_once(
    store: JobStore, store_database: ScratchDatabase, outcome: Outcome
) -> None:
    url = store_database.url
    claim = await running(store)
    await store.finish(claim.key, CHECKOUT_ERRORED)
    await store.rescue()
    (claim,) = await claimed(store)
    await store.finish(claim.key, outcome)
    before = await store.attempts(claim.key.job_id)
    trace = [run async for run in recorded_runs(url, 0.0)]
    assert [each.number for each in before] == [1, 2]
    assert (await check(url)).counts["attempts"] == 2
    await asyncio.to_thread(store_database.query, OLDER)
    assert len(await written(store_database)) == 2
    assert await store.attempts(claim.key.job_id) == before
    assert (await check(url)).counts["attempts"] == 2
    assert [run async for run in recorded_runs(url, 0.0)] == trace
    assert await store.finish(claim.key, outcome)
    assert not await store.finish(claim.key, CANCELLED)


async def test_a_row_of_its_own_is_what_counts(store: JobStore, store_database: ScratchDatabase) -> None:
    claim = await running(store)
    await store.finish(claim.key, FAILED)
    await asyncio.to_thread(store_database.query, OLDER)
    await asyncio.to_thread(
        store_database.query, "UPDATE attempts SET state = 'succeeded', detail = 'so it was'"
    )
    (attempt,) = await store.attempts(claim.key.job_id)
    assert (attempt.state, attempt.detail) == (JobState.SUCCEEDED, "so it was")


async def test_a_job_that_ended_without_any_attempt_reports_none(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    run_id = await planned(store)
    (view,) = await store.jobs(run_id=run_id, limit=9)
    await store.cancel_job(view.job_id)
    assert await store.attempts(view.job_id) == []
    assert (await check(store_database.url)).counts["attempts"] == 0
    assert not await store.finish(AttemptKey(job_id=view.job_id, number=0), CANCELLED)


async def test_a_purged_run_takes_its_attempts_along_wherever_they_stand(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    claim = await running(store)
    await store.finish(claim.key, CHECKOUT_ERRORED)
    await store.rescue()
    (claim,) = await claimed(store)
    await store.finish(claim.key, SUCCEEDED)
    assert len(await store.attempts(claim.key.job_id)) == 2
    await store.purge(-3600.0, 10)
    assert await store.attempts(claim.key.job_id) == []
    assert await written(store_database) == []
    found = await check(store_database.url)
    assert (found.well, found.counts["attempts"]) == (True, 0)
