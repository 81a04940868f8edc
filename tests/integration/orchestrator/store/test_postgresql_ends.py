"""A process ends its own claims in one PostgreSQL statement, unless something changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import asyncpg
import pytest

from solstice_common.messages import JobStatusV1, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.postgresql import finish
from solstice_orchestrator.store.postgresql import store as postgresql_store
from solstice_orchestrator.store.postgresql.tables.clock import EstimatedClock
from solstice_orchestrator.store.protocol import Claim
from tests.builders import job
from tests.polling import wait_until_true
from tests.servers.postgresql import ScratchDatabase
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    claimed,
    planned,
    running,
)

LEASE = 60.0
Elsewhere = Callable[[JobStore, Claim], Awaitable[object]]


@pytest.fixture
async def store(store_database: ScratchDatabase) -> AsyncIterator[JobStore]:
    async with open_store(store_database.url, lease_seconds=LEASE) as opened:
        yield opened


@pytest.fixture
async def other(store_database: ScratchDatabase, store: JobStore) -> AsyncIterator[JobStore]:
    """Another orchestrator's."""
    async with open_store(store_database.url, lease_seconds=LEASE) as opened:
        yield opened


@pytest.fixture
def slow_ends(monkeypatch: pytest.MonkeyPatch) -> AsyncMock:
    """Count the ends that go the usual way, which reads rows."""
    usual = AsyncMock(side_effect=finish.finish)
    monkeypatch.setattr(finish, "finish", usual)
    return usual


async def outbox_statuses(store: JobStore) -> Sequence[tuple[str | None, str | None, int | None]]:
    """The statuses of jobs in the outbox, in order: state, reason, sequence."""
    statuses = [JobStatusV1.decode(message.body) for message in await store.outbox(256)]
    return [(each.state, each.reason, each.sequence) for each in statuses if each.job_id is not None]


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
async def test_what_was_claimed_here_is_ended_without_reading_it_again(
    store: JobStore, slow_ends: AsyncMock, outcome: Outcome
) -> None:
    claim = await running(store)
    assert await store.finish(claim.key, outcome)
    assert slow_ends.await_count == 0
    view, run = await store.job(claim.key.job_id), await store.run(claim.run_id)
    assert view is not None
    assert run is not None
    assert (view.state, view.reason, view.exit_code) == (outcome.state, outcome.reason, outcome.exit_code)
    assert (run.state.value, run.finished_at) == (outcome.state.value, view.finished_at)
    assert view.started_at is not None
    assert view.finished_at is not None
    assert view.started_at <= view.finished_at
    (attempt,) = await store.attempts(claim.key.job_id)
    assert (attempt.worker_id, attempt.started_at, attempt.finished_at) == (
        WORKER,
        view.started_at,
        view.finished_at,
    )
    assert (await outbox_statuses(store))[-1] == (outcome.state, outcome.reason, view.sequence)


async def test_many_are_ended_together_with_any_knowledge_of_each(
    store: JobStore, other: JobStore, slow_ends: AsyncMock
) -> None:
    for count in (1, 2, 1, 1):
        await planned(store, *[job("true", name=str(number)) for number in range(count)])
    other_claims = await other.claim("other", {"linux": 1}, 1)
    claims = [*other_claims, *await claimed(store)]
    answers = await asyncio.gather(*[store.finish(claim.key, SUCCEEDED) for claim in [*claims, claims[-1]]])
    assert answers == [True] * 6
    # Of the five, that of the other one and two of one run had to be read, and the one that came twice.
    ((_, group),) = [call.args for call in slow_ends.await_args_list]
    assert [end.key for end in group] == [claim.key for claim in [*claims[:3], claims[-1]]]
    states = [view.state for view in await store.jobs(limit=9)]
    assert states == [JobState.SUCCEEDED] * 5
    assert [run.state for run in (await store.runs(limit=9)).runs] == [RunState.SUCCEEDED] * 4


async def test_an_end_touches_no_other_job_of_a_run_that_goes_on(
    store: JobStore, store_database: ScratchDatabase
) -> None:
    await planned(store, *[job("true", name=str(number)) for number in range(3)])
    first, second, waiting = await claimed(store)
    assert await store.finish(waiting.key, RELEASED)
    async with locked(store_database, "SELECT 1 FROM jobs WHERE job_id = $1", waiting.key.job_id):
        assert await store.finish(first.key, SUCCEEDED)
    run = await store.run(first.run_id)
    assert run is not None
    assert run.state is RunState.RUNNING
    (waiting,) = await claimed(store)
    assert [await store.finish(claim.key, SUCCEEDED) for claim in (second, waiting)] == [True, True]
    run = await store.run(first.run_id)
    assert run is not None
    assert run.state is RunState.SUCCEEDED


async def test_the_last_of_two_simultaneous_ends_ends_the_run(
    store: JobStore, other: JobStore, store_database: ScratchDatabase
) -> None:
    await planned(store, job("true", name="one"), job("true", name="two"))
    one, two = await claimed(store)
    async with locked(store_database, "SELECT 1 FROM runs WHERE run_id = $1", one.run_id):
        ends = [
            asyncio.ensure_future(of.finish(claim.key, SUCCEEDED))
            for of, claim in ((store, one), (other, two))
        ]
        # Both have begun their statements, and neither sees in them what the other one will commit.
        await wait_until_true("both wait for the run", lambda: sessions_wait(store_database, 2))
    assert await asyncio.gather(*ends) == [True, True]
    run = await store.run(one.run_id)
    assert run is not None
    assert run.state is RunState.SUCCEEDED


@asynccontextmanager
async def locked(database: ScratchDatabase, rows: str, *arguments: object) -> AsyncIterator[None]:
    """Another transaction has locked these rows; what waits for them fails."""
    connection = await asyncpg.connect(database.url)
    try:
        async with connection.transaction(), asyncio.timeout(30):
            assert await connection.fetch(f"{rows} FOR NO KEY UPDATE", *arguments)
            yield
    finally:
        await connection.close()


async def sessions_wait(database: ScratchDatabase, count: int) -> bool:
    """Whether so many sessions wait for locks."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ((found,),) = await asyncio.to_thread(database.query, waiting)
    return bool(found == count)


async def test_a_run_of_which_an_older_version_has_not_counted_the_jobs_is_read(
    store: JobStore, store_database: ScratchDatabase, slow_ends: AsyncMock
) -> None:
    await planned(store, job("true"))
    await asyncio.to_thread(store_database.query, "UPDATE runs SET job_count = 0")
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, SUCCEEDED)
    assert slow_ends.await_count == 1
    run = await store.run(claim.run_id)
    assert run is not None
    assert run.state is RunState.SUCCEEDED


async def cancelled(store: JobStore, claim: Claim) -> object:
    return await store.cancel_job(claim.key.job_id)


async def ended(store: JobStore, claim: Claim) -> object:
    return await store.finish(claim.key, FAILED)


async def handed_back(store: JobStore, claim: Claim) -> object:
    return await store.finish(claim.key, RELEASED)


async def claimed_again(store: JobStore, claim: Claim) -> object:
    await handed_back(store, claim)
    return await store.claim("other", {"linux": 1}, 1)


@pytest.mark.parametrize(
    ("elsewhere", "outcome", "recorded", "state", "reason"),
    [
        (cancelled, CANCELLED, True, JobState.CANCELLED, Reason.CANCEL_REQUESTED),
        (cancelled, SUCCEEDED, True, JobState.SUCCEEDED, Reason.COMPLETED),
        (ended, SUCCEEDED, False, JobState.FAILED, Reason.STEP_FAILED),
        (ended, FAILED, True, JobState.FAILED, Reason.STEP_FAILED),
        (handed_back, SUCCEEDED, False, JobState.WAITING, Reason.RELEASED),
        (claimed_again, SUCCEEDED, False, JobState.RUNNING, Reason.CLAIMED),
    ],
    ids=[
        "it was to end",
        "it was to end and succeeded before",
        "ended otherwise",
        "ended so",
        "handed back",
        "taken by another",
    ],
)
async def test_what_others_did_meanwhile_counts(
    store: JobStore,
    other: JobStore,
    slow_ends: AsyncMock,
    elsewhere: Elsewhere,
    outcome: Outcome,
    recorded: bool,
    state: JobState,
    reason: Reason,
) -> None:
    claim = await running(store)
    await elsewhere(other, claim)
    slow_ends.reset_mock()
    assert await store.finish(claim.key, outcome) is recorded
    assert slow_ends.await_count == 1
    view = await store.job(claim.key.job_id)
    assert view is not None
    assert (view.state, view.reason) == (state, reason)
    # The failed statement leaves no status.
    messages = await outbox_statuses(store)
    assert [sequence for _, _, sequence in messages] == list(range(1, view.sequence + 1))
    assert messages[-1][:2] == (state, reason)


async def test_ends_that_a_renewal_reported_are_not_written_again(
    store: JobStore, other: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = AsyncMock(side_effect=finish.end_at_once)
    monkeypatch.setattr(postgresql_store, "end_at_once", tried)
    claim = await running(store)
    await other.cancel_job(claim.key.job_id)
    assert (await store.renew(WORKER, [claim.key])).cancelled == {claim.key}
    assert await store.finish(claim.key, CANCELLED)
    assert tried.await_count == 0


async def test_a_longer_lease_and_another_priority_are_no_reason_to_look(
    store: JobStore, other: JobStore, slow_ends: AsyncMock
) -> None:
    claim = await running(store)
    await other.renew(WORKER, [claim.key])
    await other.prioritise(claim.key.job_id, Priority.HIGH)
    assert await store.finish(claim.key, SUCCEEDED)
    assert slow_ends.await_count == 0
    view = await store.job(claim.key.job_id)
    assert view is not None
    assert (view.state, view.priority) == (JobState.SUCCEEDED, Priority.HIGH)


@pytest.mark.parametrize("outcome", [RELEASED, CHECKOUT_ERRORED], ids=["handed back", "the world was wrong"])
async def test_ends_that_ask_for_more_than_the_rows_are_looked_at(
    store: JobStore, slow_ends: AsyncMock, outcome: Outcome
) -> None:
    claim = await running(store)
    assert await store.finish(claim.key, outcome)
    assert slow_ends.await_count == 1


@pytest.mark.parametrize("wrong_by", [-3600.0, -6.0, 60.0, 3600.0])
async def test_a_clock_that_the_database_does_not_show_decides_nothing(
    store: JobStore, slow_ends: AsyncMock, monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    claim = await running(store)
    right = EstimatedClock.now

    def wrong(clock: EstimatedClock) -> float | None:
        now = right(clock)
        return now and now + wrong_by

    monkeypatch.setattr(EstimatedClock, "now", wrong)
    assert await store.finish(claim.key, SUCCEEDED)
    assert slow_ends.await_count == 1
    view = await store.job(claim.key.job_id)
    assert view is not None
    assert view.started_at is not None
    assert view.finished_at is not None
    assert 0 <= view.finished_at - view.started_at < 120


async def test_without_a_recent_reading_the_clock_is_read(
    store: JobStore, slow_ends: AsyncMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await running(store)
    monkeypatch.setattr(EstimatedClock, "now", lambda _: None)
    assert await store.finish(claim.key, SUCCEEDED)
    assert slow_ends.await_count == 1


async def test_who_has_forgotten_an_attempt_looks(
    store: JobStore, slow_ends: AsyncMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "REMEMBERED", 2)
    for _ in range(3):
        await planned(store, job("true"))
    for claim in await claimed(store):
        assert await store.finish(claim.key, SUCCEEDED)
    assert slow_ends.await_count == 1
