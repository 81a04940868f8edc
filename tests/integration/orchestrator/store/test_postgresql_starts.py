"""A run begins with its only job: PostgreSQL writes no row for it.

Readers see no difference.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from solstice_common.messages import JobStatusV1, Priority
from solstice_common.messages.states import RunState
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import AttemptKey, Claim
from solstice_orchestrator.store.views import RunView
from tests.builders import job, job_request
from tests.servers.postgresql import ScratchDatabase
from tests.stores import CHECKOUT_ERRORED, FAILED, RELEASED, SUCCEEDED, ManualClock, claimed, planned, running

LEASE = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(store_database: ScratchDatabase, clock: ManualClock) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url, lease_seconds=LEASE, clock=clock) as opened:
        yield opened


@pytest.fixture
async def other(
    store_database: ScratchDatabase, store: JobStore, clock: ManualClock
) -> AsyncIterator[JobStore]:
    """Another orchestrator's."""
    async with open_store(store_database.url, lease_seconds=LEASE, clock=clock) as opened:
        yield opened


async def rows(database: ScratchDatabase) -> Sequence[Any]:
    """The version of each run's row, and what it says."""
    statement = "SELECT ctid::text, xmin::text, state, sequence, started_at FROM runs ORDER BY run_id"
    return await asyncio.to_thread(database.query, statement)


async def run_of(store: JobStore, run_id: str) -> RunView:
    view = await store.run(run_id)
    assert view is not None
    return view


async def numbers_reported(store: JobStore, run_id: str) -> list[int | None]:
    """Of the statuses about the run itself, in their order."""
    statuses = [JobStatusV1.decode(message.body) for message in await store.outbox(256)]
    return [each.sequence for each in statuses if each.run_id == run_id and each.job_id is None]


async def test_the_row_stays_as_it_was_and_every_reader_sees_that_the_run_runs(
    store: JobStore, store_database: ScratchDatabase, clock: ManualClock
) -> None:
    request = job_request()
    run_id = await planned(store, job("true"), request=request)
    waits = await planned(store, job("true", runs_on="illumos"))
    before = await rows(store_database)
    clock.forward(5)
    (claim,) = await claimed(store)
    assert await rows(store_database) == before
    view = await run_of(store, run_id)
    assert (view.state, view.started_at) == (RunState.RUNNING, clock.now)
    assert await store.run_of_request(request.request_id) == view
    assert (await store.runs(limit=9, state=RunState.RUNNING)).runs == [view]
    assert [each.run_id for each in (await store.runs(limit=9, state=RunState.WAITING)).runs] == [waits]
    assert (await store.runs(limit=9)).runs[1] == view
    assert await numbers_reported(store, run_id) == [1, 2, 3]
    assert claim.run_id == run_id


async def test_a_run_of_two_jobs_is_written_when_the_first_of_them_starts(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    await planned(store, job("true", name="one"), job("true", name="two"))
    await claimed(store, limit=1)
    assert [row["state"] for row in await rows(store_database)] == ["running"]


async def nothing(_store: JobStore, _claim: Claim, _clock: ManualClock) -> None:
    pass


async def handed_back_and_claimed(store: JobStore, claim: Claim, clock: ManualClock) -> None:
    assert await store.finish(claim.key, RELEASED)
    assert (await run_of(store, claim.run_id)).state is RunState.WAITING
    clock.forward(1)
    assert len(await claimed(store)) == 1


async def failed_by_us_and_claimed(store: JobStore, claim: Claim, clock: ManualClock) -> None:
    assert await store.finish(claim.key, CHECKOUT_ERRORED)
    assert (await run_of(store, claim.run_id)).state is RunState.WAITING
    clock.forward(3600)
    assert len(await claimed(store)) == 1


async def rescued_and_claimed(store: JobStore, claim: Claim, clock: ManualClock) -> None:
    clock.forward(LEASE + 1)
    assert await store.rescue() == [claim.key]
    assert (await run_of(store, claim.run_id)).state is RunState.WAITING
    clock.forward(3600)
    assert len(await claimed(store)) == 1


async def of_another_class(store: JobStore, claim: Claim, _clock: ManualClock) -> None:
    await store.prioritise(claim.key.job_id, Priority.HIGH)


async def end_requested(store: JobStore, claim: Claim, _clock: ManualClock) -> None:
    await store.cancel_run(claim.run_id)


MEANWHILE = [
    nothing,
    handed_back_and_claimed,
    failed_by_us_and_claimed,
    rescued_and_claimed,
    of_another_class,
    end_requested,
]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("whose", ["here", "elsewhere"])
@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
async def test_its_start_and_its_statuses_are_as_without_the_fault(
    store: JobStore,
    other: JobStore,
    clock: ManualClock,
    meanwhile: Callable[[JobStore, Claim, ManualClock], Awaitable[None]],
    whose: str,
    outcome: Any,
) -> None:
    claim = await running(store)
    began = clock.now
    clock.forward(2)
    await meanwhile(other if whose == "elsewhere" else store, claim, clock)
    view = await run_of(store, claim.run_id)
    assert (view.state, view.started_at, view.finished_at) == (RunState.RUNNING, began, None)
    (job_view,) = await store.jobs(run_id=claim.run_id, limit=2)
    clock.forward(2)
    key = AttemptKey(job_id=claim.key.job_id, number=job_view.attempt)
    assert await (other if whose == "elsewhere" else store).finish(key, outcome)
    view = await run_of(store, claim.run_id)
    assert (view.started_at, view.finished_at) == (began, clock.now)
    assert view.state.final
    reported = await numbers_reported(store, claim.run_id)
    assert reported == list(range(1, len(reported) + 1))


async def test_a_run_of_which_an_older_version_says_that_it_runs_does(
    store: JobStore, store_database: ScratchDatabase, clock: ManualClock
) -> None:
    claim = await running(store)
    began = clock.now
    await asyncio.to_thread(
        store_database.query,
        f"UPDATE runs SET state = 'running', sequence = sequence + 1, started_at = {began}",  # noqa: S608  a number
    )
    clock.forward(1)
    assert (await run_of(store, claim.run_id)).state is RunState.RUNNING
    assert await store.finish(claim.key, SUCCEEDED)
    view = await run_of(store, claim.run_id)
    assert (view.state, view.started_at) == (RunState.SUCCEEDED, began)
    reported = await numbers_reported(store, claim.run_id)
    assert reported == list(range(1, len(reported) + 1))
