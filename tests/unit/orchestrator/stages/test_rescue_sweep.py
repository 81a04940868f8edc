"""The rhythm of the sweep, with the test's clock and sleep."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.stages.rescue_sweep import run_rescue
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from tests.stores import WORKER, ManualClock, running, state_of, store_file

LEASE = 60.0
EVERY = 10.0


class SweptStore(SqliteStore):
    """Counts its sweeps, and fails the given ones."""

    sweeps = 0
    failures: tuple[Exception, ...] = ()

    async def rescue(self) -> Sequence[AttemptKey]:
        self.sweeps += 1
        if self.failures:
            failure, *rest = self.failures
            self.failures = tuple(rest)
            raise failure
        return await super().rescue()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SweptStore]:
    rng = random.Random(1)
    rules = StoreRules(new_id=id_source(rng), rng=rng, lease_seconds=LEASE)
    async with SweptStore.open(store_file(tmp_path), rules=rules, clock=clock) as opened:
        assert isinstance(opened, SweptStore)
        yield opened


async def sweep(
    store: SweptStore, clock: ManualClock, *, naps: int, during: Callable[[int], object] = lambda _: None
) -> None:
    """Run the loop until it slept `naps` times; `during` may act in each sleep."""
    slept = 0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        if slept == naps:
            raise asyncio.CancelledError
        clock.forward(seconds)
        during(slept)
        slept += 1

    with contextlib.suppress(asyncio.CancelledError):
        await run_rescue(
            store, every_seconds=EVERY, lease_seconds=LEASE, rng=random.Random(1), clock=clock, sleep=sleep
        )


async def test_a_dead_holders_job_is_taken_back_in_time(store: SweptStore, clock: ManualClock) -> None:
    claim = await running(store)
    begun = clock()
    await sweep(store, clock, naps=8)
    (attempt,) = await store.attempts(claim.key.job_id)
    assert attempt.reason is Reason.AGENT_LOST
    assert attempt.finished_at is not None
    assert attempt.finished_at - begun < 90


async def test_a_living_holder_keeps_its_job_when_the_machine_has_slept(
    store: SweptStore, clock: ManualClock
) -> None:
    claim = await running(store)
    await sweep(store, clock, naps=1, during=lambda _: clock.forward(3600))
    assert store.sweeps == 0
    assert not (await store.renew(WORKER, [claim.key])).lost
    await sweep(store, clock, naps=3)
    assert store.sweeps == 3
    assert await state_of(store, claim.key.job_id) == (JobState.RUNNING, Reason.CLAIMED)


async def test_a_worker_that_does_not_renew_after_the_machine_has_slept_loses_its_job(
    store: SweptStore, clock: ManualClock
) -> None:
    claim = await running(store)
    await sweep(store, clock, naps=2, during=lambda nap: clock.forward(0 if nap else 3600))
    assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, Reason.AGENT_LOST)


@pytest.mark.parametrize(
    "failure",
    [StoreUnavailable("the test's store", "it is in a mood"), RuntimeError("a mistake")],
    ids=["store away", "mistake"],
)
async def test_a_sweep_that_failed_is_not_the_last(
    store: SweptStore, clock: ManualClock, failure: Exception
) -> None:
    claim = await running(store)
    clock.forward(LEASE)
    store.failures = (failure,)
    await sweep(store, clock, naps=2)
    assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, Reason.AGENT_LOST)
