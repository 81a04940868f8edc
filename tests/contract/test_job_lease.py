"""Every store renews leases, and tells a holder which attempts it lost."""

from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import (
    AttemptKey,
)
from tests.stores import (
    LEASE,
    SUCCEEDED,
    WORKER,
    ManualClock,
    running,
)


async def test_renewing_prolongs(store: JobStore, clock: ManualClock) -> None:
    claim = await running(store)
    for _ in range(5):
        clock.forward(LEASE / 2)
        renewal = await store.renew(WORKER, [claim.key])
        assert (renewal.lost, renewal.cancelled) == (frozenset(), frozenset())
        assert await store.rescue() == []


async def test_an_attempt_that_its_holder_ended_is_not_lost(store: JobStore) -> None:
    claim = await running(store)
    await store.finish(claim.key, SUCCEEDED)
    assert (await store.renew(WORKER, [claim.key])).lost == frozenset()


async def test_what_never_was_is_lost(store: JobStore) -> None:
    ghost = AttemptKey(job_id="00000000-0000-7000-8000-000000000000", number=1)
    assert (await store.renew(WORKER, [ghost])).lost == {ghost}
