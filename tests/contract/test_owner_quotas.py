"""Every job store keeps the quotas of owners over all orchestrators.

Quotas limit jobs at once, and starts in any hour.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.quotas import HOUR, MINUTE, Quotas, owner_of
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Claim
from tests.builders import job, job_request
from tests.stores import (
    CHECKOUT_ERRORED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    claimed,
    planned,
    waiting_jobs,
    why_last,
    worker_record,
)

Open = Callable[..., AbstractAsyncContextManager[JobStore]]


@pytest.fixture
def opened(store_url: str, clock: ManualClock) -> Open:
    """The test's store, with these quotas."""

    def connect(
        slots: str = "", hourly: str = "", caps: str = "", rates: str = ""
    ) -> AbstractAsyncContextManager[JobStore]:
        return open_store(
            store_url,
            clock=clock,
            lease_seconds=1e9,
            caps=parse_caps(caps),
            quotas=Quotas(slots=parse_caps(slots), starts_per_hour=parse_caps(hourly)),
            rates=StartRates(repositories=parse_rates(rates)),
        )

    return connect


def owners(claims: Sequence[Claim]) -> Counter[str]:
    return Counter(owner_of(claim.request.repo_full_name or claim.request.repo_url) for claim in claims)


class TestSlots:
    async def test_all_repositories_of_an_owner_together_run_no_more_and_delay_no_other(
        self, opened: Open
    ) -> None:
        async with opened("acme=3") as store:
            for repository in ("acme/app", "acme/docs", "acme/deep/er", "reef/tide"):
                await waiting_jobs(store, 10, repository=repository)
            claims = await claimed(store, free={"linux": 20}, limit=20)
            assert owners(claims) == {"acme": 3, "reef": 10}
            own = next(claim for claim in claims if claim.request.repo_full_name == "acme/app")
            await store.finish(own.key, SUCCEEDED)
            assert owners(await claimed(store)) == {"acme": 1}

    async def test_a_claim_that_sees_only_a_full_owner_s_jobs_looks_on(self, opened: Open) -> None:
        async with opened("*=2") as store:
            await waiting_jobs(store, 30, repository="acme/app")
            await waiting_jobs(store, 30, repository="acme/docs")
            await waiting_jobs(store, 3, repository="reef/tide")
            assert owners(await claimed(store, free={"linux": 3}, limit=3)) == {"acme": 2, "reef": 1}
            assert owners(await claimed(store, free={"linux": 3}, limit=3)) == {"reef": 1}

    async def test_who_has_no_owner_has_no_quota(self, opened: Open) -> None:
        async with opened("*=1", hourly="*=1") as store:
            request = job_request(repo_full_name=None, repo_url="file:///srv/acme/app.git")
            await planned(store, *(job("true", name=name) for name in "abc"), request=request)
            assert len(await claimed(store)) == 3

    async def test_one_known_by_its_url_alone_has_the_owner_that_stands_there(self, opened: Open) -> None:
        async with opened("acme=2") as store:
            for url in ("https://forge.example/acme/app.git", "ssh://git@forge.example:2222/acme/docs.git"):
                request = job_request(repo_full_name=None, repo_url=url)
                await planned(store, *(job("true", name=name) for name in "abc"), request=request)
            assert len(await claimed(store)) == 2

    async def test_the_repository_s_cap_holds_beside_it(self, opened: Open) -> None:
        async with opened("acme=5", caps="*=2") as store:
            for repository in ("acme/app", "acme/docs", "acme/site", "reef/tide"):
                await waiting_jobs(store, 4, repository=repository)
            claims = await claimed(store)
        claimed_counts = Counter(claim.request.repo_full_name for claim in claims)
        assert owners(claims) == {"acme": 5, "reef": 2}
        assert max(claimed_counts.values()) == 2

    async def test_many_who_claim_at_once_keep_to_it(self, opened: Open) -> None:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(opened("*=7", hourly="*=9")) for _ in range(3)]
            for repository in ("acme/app", "acme/docs", "acme/site", "reef/tide"):
                await waiting_jobs(stores[0], 20, repository=repository)
            started = Counter[str]()
            for round_, expected in enumerate((7, 2, 0)):
                claimed_counts = await asyncio.gather(
                    *(
                        store.claim(f"worker-{round_}-{number}", {"linux": 6}, 6)
                        for number, store in enumerate(stores * 4)
                    )
                )
                # A claim that found the owner locked got nothing; another claim shows that no job was
                # forgotten.
                rest = await claimed(stores[0], worker=f"last-{round_}")
                together = [claim for claims in (*claimed_counts, rest) for claim in claims]
                started += owners(together)
                assert owners(together) == Counter({"acme": expected, "reef": expected} if expected else {})
                for claim in together:
                    await stores[1].finish(claim.key, SUCCEEDED)
            assert started == {"acme": 9, "reef": 9}


async def test_by_the_store_s_own_clock_many_who_claim_at_once_keep_to_both(store_url: str) -> None:
    quotas = Quotas(slots=parse_caps("*=7"), starts_per_hour=parse_caps("*=9"))
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(store_url, quotas=quotas)) for _ in range(3)]
        for repository in ("acme/app", "acme/docs", "reef/tide"):
            await waiting_jobs(stores[0], 20, repository=repository)
        started = Counter[str]()
        for expected in (7, 2, 0):
            claimed_counts = await asyncio.gather(
                *(store.claim(f"worker-{number}", {"linux": 6}, 6) for number, store in enumerate(stores * 4))
            )
            together = [claim for claims in (*claimed_counts, await claimed(stores[0])) for claim in claims]
            assert owners(together) == Counter({"acme": expected, "reef": expected} if expected else {})
            started += owners(together)
            for claim in together:
                assert await stores[1].finish(claim.key, SUCCEEDED)
        pause = await stores[2].rate_pause()
    assert started == {"acme": 9, "reef": 9}
    assert pause is not None
    assert 0 < pause <= HOUR + MINUTE


class TestStartsPerHour:
    async def test_what_started_counts_for_an_hour_and_to_the_next_full_minute(
        self, opened: Open, clock: ManualClock
    ) -> None:
        clock.now = 1_800_000_000.0 + 10
        async with opened(hourly="acme=5") as store:
            await waiting_jobs(store, 30, repository="acme/app")
            await waiting_jobs(store, 8, repository="reef/tide")
            assert owners(await claimed(store)) == {"acme": 5, "reef": 8}
            seen = []
            for pause in (0.0, HOUR - 0.5, 50.5, 0.0, HOUR):
                clock.forward(pause)
                seen.append(len(await claimed(store)))
        assert seen == [0, 0, 5, 0, 5]

    async def test_never_more_in_any_hour_and_never_fewer_for_longer_than_a_minute(
        self, opened: Open, clock: ManualClock
    ) -> None:
        rng, quota, begun = random.Random(5), 6, list[float]()
        async with opened(hourly=f"*={quota}") as store:
            await waiting_jobs(store, 60, repository="acme/app")
            await waiting_jobs(store, 60, repository="acme/docs")
            for _ in range(60):
                clock.forward(rng.choice([0.25, 7.0, 61.0, 500.0, 1800.0]))
                before = sum(at > clock.now - HOUR - MINUTE for at in begun)
                claims = await claimed(store, free={"linux": 3}, limit=3)
                assert len(claims) >= min(3, quota - before)
                begun += [clock.now] * len(claims)
                for claim in claims:
                    await store.finish(claim.key, SUCCEEDED)
        assert len(begun) > 4 * quota
        for end in begun:
            assert sum(end - HOUR < at <= end for at in begun) <= quota

    async def test_attempts_count_also_those_that_came_to_nothing(
        self, opened: Open, clock: ManualClock
    ) -> None:
        async with opened(hourly="acme=3") as store:
            await waiting_jobs(store, 1, repository="acme/app")
            for outcome in (RELEASED, CHECKOUT_ERRORED, RELEASED):
                (claim,) = await claimed(store)
                await store.finish(claim.key, outcome)
                clock.forward(30)
            assert await claimed(store) == ()
            clock.forward(HOUR)
            assert len(await claimed(store)) == 1

    async def test_when_to_look_again(self, opened: Open, clock: ManualClock) -> None:
        async with opened(hourly="acme=2") as store:
            await waiting_jobs(store, 4, repository="acme/app")
            assert await store.rate_pause() is None
            await claimed(store, free={"linux": 1}, limit=1)
            assert await store.rate_pause() is None
            clock.forward(600)
            await claimed(store, free={"linux": 1}, limit=1)
            assert await store.rate_pause() == pytest.approx(HOUR - 600)
            clock.forward(HOUR - 600)
            assert await store.rate_pause() is None
            assert len(await claimed(store)) == 1

    async def test_with_a_rate_beside_it_the_first_of_both_is_when_to_look(
        self, opened: Open, clock: ManualClock
    ) -> None:
        async with opened(hourly="acme=2", rates="reef/tide=450/h") as store:
            await waiting_jobs(store, 4, repository="acme/app")
            await waiting_jobs(store, 4, repository="reef/tide")
            assert owners(await claimed(store)) == {"acme": 2, "reef": 1}
            assert await store.rate_pause() == pytest.approx(8)
            clock.forward(8)
            assert owners(await claimed(store)) == {"reef": 1}


class TestOwnersInTurn:
    @pytest.mark.parametrize(
        "bounds",
        [
            {"slots": "acme=1"},
            {"hourly": "acme=1"},
            {"rates": "acme/app=1/h"},
            {"caps": "acme/app=1"},
        ],
        ids=str,
    )
    async def test_a_repository_at_its_limit_does_not_decide_the_turns_of_new_ones(
        self, opened: Open, bounds: dict[str, str]
    ) -> None:
        async with opened(**bounds) as store:
            await waiting_jobs(store, 50, repository="acme/app")
            await waiting_jobs(store, 60, repository="reef/tide")
            await claimed(store, free={"linux": 32}, limit=32)
            await waiting_jobs(store, 30, repository="lantern/pier")
            claims = await claimed(store, free={"linux": 20}, limit=20)
            assert owners(claims) == {"reef": 10, "lantern": 10}


class TestWhy:
    async def test_an_owner_at_its_cap_is_named_with_what_runs(self, opened: Open) -> None:
        async with opened("lantern=1") as store:
            await store.register(worker_record(WORKER))
            await waiting_jobs(store, 1, repository="lantern/harbour")
            (claim,) = await claimed(store)
            why = await why_last(store, await waiting_jobs(store, 1, repository="lantern/pier"))
        assert why.reason is WaitReason.OWNER_CAP
        assert [holder.job_id for holder in why.holders] == [claim.key.job_id]
        assert why.detail == "lantern may run 1 job at once, and does."

    async def test_an_owner_that_has_started_as_many_as_it_may_is_named_with_when(
        self, opened: Open, clock: ManualClock
    ) -> None:
        async with opened(hourly="lantern=2") as store:
            await store.register(worker_record(WORKER))
            await waiting_jobs(store, 2, repository="lantern/harbour")
            for claim in await claimed(store):
                await store.finish(claim.key, SUCCEEDED)
            await waiting_jobs(store, 2, repository="lantern/pier")
            run_id = await waiting_jobs(store, 1, repository="lantern/harbour")
            first = await why_last(store, run_id)
        assert (first.reason, first.resource, first.ahead) == (WaitReason.RATE_LIMITED, "owner", 2)
        # Two go before it, and take all of the next hour.
        assert first.until == pytest.approx(clock.now + 2 * HOUR, abs=MINUTE)
        assert first.expected_start is not None
        assert first.expected_start.earliest == first.until
        assert "lantern have started as may for now (2 in any hour)" in first.detail

    async def test_jobs_of_a_full_owner_are_not_ahead(self, opened: Open) -> None:
        async with opened("acme=1", hourly="reef=1") as store:
            await store.register(worker_record(WORKER))
            await waiting_jobs(store, 5, repository="acme/app")
            await waiting_jobs(store, 5, repository="reef/tide")
            await claimed(store, free={"linux": 2}, limit=2)
            assert (await why_last(store, await waiting_jobs(store, 1, repository="lantern/pier"))).ahead == 0
