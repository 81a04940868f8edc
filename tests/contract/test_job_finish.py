"""Every store records how an attempt ended, once, and what follows from it."""

import asyncio

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Outcome, Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import (
    OutboxKind,
)
from tests.builders import job, job_request
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    RELEASED,
    SUCCEEDED,
    ManualClock,
    claimed,
    outbox_statuses,
    planned,
    retries_after,
    running,
    state_of,
)


@pytest.mark.parametrize(
    ("outcome", "run_state"),
    [
        (SUCCEEDED, RunState.SUCCEEDED),
        (FAILED, RunState.FAILED),
        (CANCELLED, RunState.CANCELLED),
        (Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT), RunState.TIMED_OUT),
        (Outcome(state=JobState.ERRORED, reason=Reason.COMMIT_NOT_FOUND), RunState.ERRORED),
    ],
    ids=lambda value: str(getattr(value, "state", value)),
)
async def test_the_run_ends_with_its_only_job(
    store: JobStore, clock: ManualClock, outcome: Outcome, run_state: RunState
) -> None:
    claim = await running(store)
    clock.forward(9)
    assert await store.finish(claim.key, outcome)
    view, run = await store.job(claim.key.job_id), await store.run(claim.run_id)
    assert view is not None
    assert run is not None
    assert (view.state, view.reason, view.exit_code, view.step) == (
        outcome.state,
        outcome.reason,
        outcome.exit_code,
        outcome.step,
    )
    assert view.finished_at == run.finished_at == clock.now
    assert view.started_at == run.started_at == clock.now - 9
    assert run.state is run_state


async def test_it_is_under_way_before_the_first_await(store: JobStore) -> None:
    claim = await running(store)
    async with asyncio.timeout(30), store.changes() as changed:
        recorded = store.finish(claim.key, SUCCEEDED)
        while (run := await store.run(claim.run_id)) is None or run.state is not RunState.SUCCEEDED:
            await changed.wait()
            changed.clear()
    assert await recorded


async def test_repeating_it_is_harmless(store: JobStore) -> None:
    claim = await running(store)
    assert await store.finish(claim.key, FAILED)
    before = len(await outbox_statuses(store))
    assert await store.finish(claim.key, FAILED)
    assert not await store.finish(claim.key, SUCCEEDED)
    assert len(await outbox_statuses(store)) == before


async def test_success_lets_go_what_needed_it(store: JobStore) -> None:
    claim = await running(
        store,
        job("true", name="build"),
        job("true", name="test", needs=("build",)),
        job("true", name="ship", needs=("build", "test")),
    )
    await store.finish(claim.key, SUCCEEDED)
    views = await store.jobs(run_id=claim.run_id, limit=9)
    assert [view.state for view in views] == [JobState.SUCCEEDED, JobState.WAITING, JobState.BLOCKED]


async def test_failure_skips_all_that_needed_it(store: JobStore) -> None:
    claim = await running(
        store,
        job("true", name="build"),
        job("true", name="test", needs=("build",)),
        job("true", name="ship", needs=("test",)),
    )
    await store.finish(claim.key, FAILED)
    views = await store.jobs(run_id=claim.run_id, limit=9)
    assert [(view.state, view.reason) for view in views[1:]] == [(JobState.SKIPPED, Reason.NEEDS_FAILED)] * 2
    run = await store.run(claim.run_id)
    assert run is not None
    assert run.state is RunState.FAILED


async def test_a_wrong_world_is_tried_again_and_then_becomes_a_dead_letter(
    store: JobStore, clock: ManualClock
) -> None:
    request = job_request()
    run_id = await planned(store, request=request)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        clock.forward(1000)
        (claim,) = await claimed(store)
        assert claim.key.number == attempt
        assert await store.finish(claim.key, CHECKOUT_ERRORED)
        expected = JobState.ERRORED if attempt == MAX_ATTEMPTS else JobState.BACKOFF
        assert await state_of(store, claim.key.job_id) == (expected, Reason.CHECKOUT_FAILED)
    clock.forward(1000)
    assert await claimed(store) == ()
    run = await store.run(run_id)
    assert run is not None
    assert run.state is RunState.ERRORED
    (dead_letter,) = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
    assert (dead_letter.request_id, dead_letter.body) == (request.request_id, request.encode())
    assert dead_letter.headers["x-solstice-reason"] == "checkout_failed"
    assert dead_letter.headers["x-solstice-history"].count("no route to host") == MAX_ATTEMPTS


async def test_a_sick_machine_spends_no_try_of_a_job(store: JobStore, clock: ManualClock) -> None:
    sick = Outcome(state=JobState.ERRORED, reason=Reason.MACHINE_FAILED, detail="disk full")
    await planned(store)
    for attempt in range(1, MAX_ATTEMPTS + 3):
        clock.forward(1000)
        (claim,) = await claimed(store, worker=f"worker-{attempt}")
        assert await store.finish(claim.key, sick)
        assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, Reason.MACHINE_FAILED)
    clock.forward(1000)
    (claim,) = await claimed(store, worker="well")
    assert await store.finish(claim.key, SUCCEEDED)


async def test_backoff_ends_at_its_time(store_url: str, clock: ManualClock) -> None:
    async with open_store(store_url, clock=clock, retries=retries_after(1e6)) as store:
        claim = await running(store)
        await store.finish(claim.key, CHECKOUT_ERRORED)
        view = await store.job(claim.key.job_id)
        assert view is not None
        assert view.retry_at is not None
        assert clock.now < view.retry_at <= clock.now + 300
        assert await claimed(store) == ()
        clock.now = view.retry_at
        assert len(await claimed(store)) == 1


async def test_a_released_job_waits_again_and_nothing_is_counted(store: JobStore) -> None:
    await planned(store)
    for attempt in range(1, MAX_ATTEMPTS + 3):
        (claim,) = await claimed(store)
        assert claim.key.number == attempt
        assert await store.finish(claim.key, RELEASED)
    assert await state_of(store, claim.key.job_id) == (JobState.WAITING, Reason.RELEASED)


async def test_a_retried_job_keeps_its_place_in_the_queue(store: JobStore) -> None:
    first = await running(store, job("true", name="old"))
    await planned(store, job("true", name="young"))
    await store.finish(first.key, RELEASED)
    assert [claim.spec.name for claim in await claimed(store)] == ["old", "young"]
