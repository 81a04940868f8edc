"""Every store gives each waiting job to one worker, in order, within free slots."""

import asyncio

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_orchestrator.store import JobStore
from tests.builders import job, job_request
from tests.stores import (
    LEASE,
    WORKER,
    ManualClock,
    OpenStore,
    claimed,
    planned,
)


async def test_most_urgent_class_first_then_the_oldest(store: JobStore) -> None:
    order = [Priority.LOW, Priority.DEFAULT, Priority.CRITICAL, Priority.DEFAULT, Priority.HIGH]
    for number, priority in enumerate(order):
        await planned(store, job("true", name=str(number), priority=priority))
    assert [claim.spec.name for claim in await claimed(store)] == ["2", "4", "1", "3", "0"]


async def test_no_more_than_the_free_slots_of_a_label(store: JobStore) -> None:
    for label in ("linux", "linux", "linux", "illumos", "plan9"):
        await planned(store, job("true", runs_on=label))
    claims = await claimed(store, free={"linux": 2, "illumos": 1, "plan9": 0})
    assert sorted(claim.spec.runs_on for claim in claims) == ["illumos", "linux", "linux"]
    assert await claimed(store, free={}) == ()


async def test_no_more_than_the_limit(store: JobStore) -> None:
    for _ in range(4):
        await planned(store)
    assert len(await claimed(store, limit=3)) == 3
    assert len(await claimed(store, limit=0)) == 0
    assert len(await claimed(store, limit=3)) == 1


async def test_a_claim_gives_everything_that_a_job_needs_to_run(store: JobStore, clock: ManualClock) -> None:
    spec = job("make", "make test", name="test", env={"A": "1"}, timeout_seconds=12.5)
    request = job_request()
    run_id = await planned(store, spec, request=request)
    clock.forward(3)
    (claim,) = await claimed(store)
    assert (claim.run_id, claim.spec, claim.request) == (run_id, spec, request)
    assert (claim.key.number, claim.lease_until) == (1, clock.now + LEASE)
    assert claim.waiting_since == clock.now - 3
    (view,) = await store.attempts(claim.key.job_id)
    assert (view.number, view.worker_id, view.state, view.started_at) == (
        1,
        WORKER,
        JobState.RUNNING,
        clock.now,
    )


async def test_two_orchestrators_never_get_the_same_job(store: JobStore, opened: OpenStore) -> None:
    await planned(store, *[job("true", name=str(number)) for number in range(40)])
    async with opened() as other:
        rounds = await asyncio.gather(
            *[each.claim(WORKER, {"linux": 3}, 3) for _ in range(10) for each in (store, other)]
        )
    keys = [claim.key for claims in rounds for claim in claims]
    assert len(keys) == len(set(keys)) == 40


async def test_ten_jobs_and_three_workers_each_job_has_one(store: JobStore, opened: OpenStore) -> None:
    await planned(store, *[job("true", name=str(number)) for number in range(4)])
    for _ in range(6):
        await planned(store)
    async with opened() as second, opened() as third:
        workers = {"worker-a": store, "worker-b": second, "worker-c": third}
        rounds = await asyncio.gather(
            *[each.claim(name, {"linux": 4}, 4) for _ in range(4) for name, each in workers.items()]
        )
        # A worker that claimed while a run began claims again.
        rounds.append(await store.claim("worker-a", {"linux": 10}, 10))
    keys = [claim.key for claims in rounds for claim in claims]
    assert len(keys) == len(set(keys)) == 10
    holders = [(await store.attempts(key.job_id))[0].worker_id for key in keys]
    assert set(holders) <= workers.keys()
