"""Every job store explains why a job waits, its position and its possible start."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Concurrency, JobSpec, Reason, RunSpec
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitExplanation, WaitReason
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.quarantine import FAILURES_IN_A_ROW, FIRST_SECONDS, OTHERS_FIRST_SECONDS
from solstice_orchestrator.scheduling.workers import PauseOrder
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.decisions.wait_facts import MAX_JOBS_READ
from solstice_orchestrator.store.protocol import AttemptKey
from tests.builders import job
from tests.stores import (
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    PROVISION_ERRORED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    planned,
    planning_task,
    request_of,
    worker_record,
)

MAX_WAIT = 600.0


@pytest.fixture
def opened(opened: OpenStore) -> OpenStore:
    return partial(opened, max_wait_seconds=MAX_WAIT)


@pytest.fixture
async def store(opened: OpenStore) -> AsyncIterator[JobStore]:
    """With one worker that serves linux (4 slots) and illumos (1)."""
    async with opened() as store:
        await store.register(worker_record(WORKER))
        yield store


async def jobs_of(store: JobStore, run_id: str) -> list[str]:
    return [view.job_id for view in await store.jobs(run_id=run_id, limit=2000)]


async def waits(store: JobStore, *specs: JobSpec, repository: str = "lantern/harbour") -> str:
    """The id of the last job of a new run."""
    return (await jobs_of(store, await planned(store, *specs, request=request_of(repository))))[-1]


async def why(store: JobStore, job_id: str) -> WaitExplanation:
    facts = await store.waiting(job_id)
    assert facts is not None
    found = explain(facts)
    assert found is not None
    return found


async def busy(store: JobStore, label: str = "illumos", repository: str = "reef/tide", **changes: Any) -> str:
    """The id of a job that has the only slot of illumos."""
    await planned(store, job("true", name="long", runs_on=label, **changes), request=request_of(repository))
    (claim,) = await claimed(store, free={label: 1}, limit=1)
    return claim.key.job_id


class TestReasons:
    async def test_not_planned_yet(self, store: JobStore) -> None:
        run_id = await admitted(store)
        facts = await store.planning(run_id)
        assert facts is not None
        found = explain(facts)
        assert found is not None
        assert found.reason is WaitReason.NOT_PLANNED_YET
        await store.planned(await planning_task(store), [job("true")])
        assert await store.planning(run_id) is None

    async def test_planning_is_tried_again(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await admitted(store)
        await store.not_planned(await planning_task(store), Reason.CHECKOUT_FAILED, "no route to host")
        facts = await store.planning(run_id)
        assert facts is not None
        found = explain(facts)
        assert found is not None
        assert found.reason is WaitReason.BACKOFF
        assert found.until is not None
        assert found.until > clock.now
        assert "no route to host" in found.detail

    async def test_needs(self, store: JobStore) -> None:
        run_id = await planned(
            store,
            job("true", name="lint"),
            job("true", name="unit"),
            job("true", name="ship", needs=("lint", "unit")),
        )
        lint, unit, ship = await jobs_of(store, run_id)
        claims = await claimed(store)
        await store.finish(next(claim.key for claim in claims if claim.key.job_id == lint), SUCCEEDED)
        found = await why(store, ship)
        assert (found.reason, found.ahead) == (WaitReason.NEEDS, None)
        assert [holder.job_id for holder in found.holders] == [unit]
        assert "unit (running)" in found.detail

    async def test_concurrency_group_of_runs(self, store: JobStore) -> None:
        run_spec = RunSpec(concurrency=Concurrency(group="deploy"))
        runs = []
        for _ in range(3):
            runs.append(await admitted(store))
            await store.planned(await planning_task(store), [job("true")], run_spec)
        (last,) = await jobs_of(store, runs[2])
        found = await why(store, last)
        assert found.reason is WaitReason.CONCURRENCY_GROUP
        assert [(holder.run_id, holder.job_id) for holder in found.holders] == [
            (runs[0], None),
            (runs[1], None),
        ]
        assert found.ahead == 2
        assert "'deploy'" in found.detail

    async def test_concurrency_group_of_jobs(self, store: JobStore) -> None:
        spec = job("true", name="ship", concurrency=Concurrency(group="deploy"))
        first, second = await waits(store, spec), await waits(store, spec)
        found = await why(store, second)
        assert found.reason is WaitReason.CONCURRENCY_GROUP
        assert [(holder.job_id, holder.name) for holder in found.holders] == [(first, "ship")]

    async def test_backoff(self, store: JobStore, clock: ManualClock) -> None:
        job_id = await waits(store, job("true"))
        (claim,) = await claimed(store)
        await store.finish(claim.key, CHECKOUT_ERRORED)
        found = await why(store, job_id)
        assert found.reason is WaitReason.BACKOFF
        assert found.until is not None
        assert found.until >= clock.now
        assert "no route to host" in found.detail

    async def test_no_worker_for_label(self, store: JobStore) -> None:
        found = await why(store, await waits(store, job("true", runs_on="plan9")))
        assert found.reason is WaitReason.NO_WORKER_FOR_LABEL
        assert "illumos, linux" in found.detail

    async def test_a_lost_worker_is_none(self, store: JobStore, clock: ManualClock) -> None:
        job_id = await waits(store, job("true"))
        clock.forward(LEASE)
        assert (await why(store, job_id)).reason is WaitReason.NO_WORKER_FOR_LABEL

    async def test_paused(self, store: JobStore) -> None:
        job_id = await waits(store, job("true"))
        await store.steer_worker(WORKER, PauseOrder())
        assert (await why(store, job_id)).reason is WaitReason.PAUSED

    async def test_paused_before_it_was_planned(self, store: JobStore) -> None:
        await store.steer_worker(WORKER, PauseOrder())
        facts = await store.planning(await admitted(store))
        assert facts is not None
        found = explain(facts)
        assert found is not None
        assert found.reason is WaitReason.PAUSED

    async def test_others_first_after_a_quarantine(self, store: JobStore, clock: ManualClock) -> None:
        for number in range(FAILURES_IN_A_ROW):
            await planned(store, job("true", name=f"bad-{number}"), request=request_of("lantern/harbour"))
            (claim,) = await claimed(store, limit=1)
            assert await store.finish(claim.key, PROVISION_ERRORED)
        clock.forward(FIRST_SECONDS)
        job_id = await waits(store, job("true"))
        assert await claimed(store) == ()
        found = await why(store, job_id)
        assert (found.reason, found.until) == (WaitReason.OTHERS_FIRST, clock.now + OTHERS_FIRST_SECONDS)
        assert "worker-a starts only jobs of other repositories" in found.detail
        assert "since jobs of lantern/harbour failed there" in found.detail
        other = await waits(store, job("true"), repository="reef/tide")
        assert (await why(store, other)).reason is WaitReason.SLOTS_BUSY
        clock.forward(OTHERS_FIRST_SECONDS)
        found = await why(store, job_id)
        assert (found.reason, found.until) == (WaitReason.SLOTS_BUSY, None)
        assert job_id in [claim.key.job_id for claim in await claimed(store)]

    async def test_while_slots_are_busy_it_says_who_goes_first_after_a_quarantine(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        for number in range(FAILURES_IN_A_ROW):
            await planned(store, job("true", name=f"bad-{number}"), request=request_of("lantern/harbour"))
            (claim,) = await claimed(store, limit=1)
            assert await store.finish(claim.key, PROVISION_ERRORED)
        clock.forward(FIRST_SECONDS + OTHERS_FIRST_SECONDS)
        await busy(store)
        found = await why(store, await waits(store, job("true", runs_on="illumos")))
        assert found.reason is WaitReason.SLOTS_BUSY
        assert "Jobs of other repositories go first, since jobs of lantern/harbour failed" in found.detail
        assert found.expected_start is None
        found = await why(store, await waits(store, job("true", runs_on="illumos"), repository="a/b"))
        assert "go first" not in found.detail

    async def test_repository_cap(self, opened: OpenStore) -> None:
        async with opened(caps=Caps(of={"lantern/harbour": 1})) as store:
            await store.register(worker_record(WORKER))
            first, second = await waits(store, job("true")), await waits(store, job("true"))
            await claimed(store)
            found = await why(store, second)
            assert found.reason is WaitReason.REPOSITORY_CAP
            assert [holder.job_id for holder in found.holders] == [first]

    async def test_slots_busy(self, store: JobStore) -> None:
        holder = await busy(store)
        found = await why(store, await waits(store, job("true", runs_on="illumos")))
        assert found.reason is WaitReason.SLOTS_BUSY
        assert found.ahead == 0
        assert [(each.job_id, each.worker_id, each.repository) for each in found.holders] == [
            (holder, WORKER, "reef/tide")
        ]

    async def test_what_runs_or_has_ended_does_not_wait_and_what_is_not_there_is_none(
        self, store: JobStore
    ) -> None:
        job_id = await waits(store, job("true"))
        (claim,) = await claimed(store)
        for state in (JobState.RUNNING, JobState.FAILED):
            facts = await store.waiting(job_id)
            assert facts is not None
            assert facts.state is state
            assert explain(facts) is None
            await store.finish(claim.key, FAILED)
        assert await store.waiting("nobody") is None
        assert await store.planning("nobody") is None


class TestAhead:
    async def test_is_how_many_start_before_it(self, store: JobStore, clock: ManualClock) -> None:
        """Exactly the jobs that are counted as ahead start earlier."""
        ids: list[str] = []
        for number, (repository, priority, age) in enumerate(
            [
                ("acme/app", Priority.LOW, 700),
                ("acme/app", Priority.LOW, 650),
                ("acme/app", Priority.DEFAULT, 30),
                ("reef/tide", Priority.HIGH, 20),
                ("acme/app", Priority.DEFAULT, 20),
                ("reef/tide", Priority.DEFAULT, 10),
                ("reef/tide", Priority.LOW, 5),
                ("acme/docs", Priority.DEFAULT, 1),
            ]
        ):
            begun = clock.now
            clock.now = begun - age
            ids.append(
                await waits(
                    store,
                    job("true", name=f"job-{number}", runs_on="illumos", priority=priority),
                    repository=repository,
                )
            )
            clock.now = begun
        counted = {job_id: (await why(store, job_id)).ahead for job_id in ids}
        order = []
        while claims := await store.claim("another", {"illumos": 1}, 1):
            order.append(claims[0].key.job_id)
        assert counted == {job_id: place for place, job_id in enumerate(order)}

    async def test_repositories_at_their_cap_are_not_ahead(self, opened: OpenStore) -> None:
        async with opened(caps=Caps(of={"reef/tide": 1})) as store:
            await store.register(worker_record(WORKER))
            await busy(store)
            for number in range(3):
                await waits(
                    store, job("true", name=f"job-{number}", runs_on="illumos"), repository="reef/tide"
                )
            own = await waits(store, job("true", runs_on="illumos"))
            assert (await why(store, own)).ahead == 0

    async def test_other_labels_do_not_count(self, store: JobStore) -> None:
        await waits(store, *(job("true", name=f"job-{number}") for number in range(5)))
        await busy(store)
        assert (await why(store, await waits(store, job("true", runs_on="illumos")))).ahead == 0


class TestExpectedStart:
    async def test_the_forecast_follows_the_durations_of_jobs_of_the_label(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await finish_jobs_of_50_seconds(store, clock)
        await busy(store)
        clock.forward(20)
        await waits(store, job("true", name="before", runs_on="illumos"))
        found = await why(store, await waits(store, job("true", runs_on="illumos")))
        assert found.ahead == 1
        assert found.expected_start is not None
        assert found.expected_start.earliest == pytest.approx(clock.now + 30 + 50)
        assert found.expected_start.latest == pytest.approx(clock.now + 30 + 50)

    async def test_of_a_job_that_needs_others_follows_from_when_they_end(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await finish_jobs_of_50_seconds(store, clock)
        linked = [
            job("true", name="lint", runs_on="illumos"),
            job("true", name="ship", runs_on="illumos", needs=("lint",)),
            job("true", name="tell", runs_on="illumos", needs=("ship", "lint")),
        ]
        _, ship, tell = await jobs_of(store, await planned(store, *linked))
        (lint,) = await claimed(store, free={"illumos": 1})
        clock.forward(20)
        await store.register(worker_record(WORKER))
        assert seconds_until(await why(store, ship), clock) == pytest.approx((30, 30))
        assert seconds_until(await why(store, tell), clock) == pytest.approx((80, 80))
        clock.forward(30)
        await store.register(worker_record(WORKER))
        await store.finish(lint.key, SUCCEEDED)
        assert seconds_until(await why(store, tell), clock) == pytest.approx((50, 50))

    async def test_of_a_group_follows_from_when_its_holder_ends(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await finish_jobs_of_50_seconds(store, clock)
        run_spec, runs = RunSpec(concurrency=Concurrency(group="deploy")), []
        for _ in range(3):
            runs.append(await admitted(store))
            await store.planned(await planning_task(store), [job("true", runs_on="illumos")], run_spec)
        _, (second,), (third,) = [await jobs_of(store, run_id) for run_id in runs]
        await claimed(store, free={"illumos": 1})
        clock.forward(20)
        await store.register(worker_record(WORKER))
        assert seconds_until(await why(store, second), clock) == pytest.approx((30, 30))
        assert seconds_until(await why(store, third), clock) == pytest.approx((80, 80))

    async def test_there_is_no_forecast_behind_more_jobs_than_are_read(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await finish_jobs_of_50_seconds(store, clock)
        wide = [job("true", name=f"job-{number}", runs_on="illumos") for number in range(MAX_JOBS_READ + 1)]
        last = job("true", name="last", needs=tuple(each.name for each in wide), runs_on="illumos")
        *_, job_id = await jobs_of(store, await planned(store, *wide, last))
        found = await why(store, job_id)
        assert (found.reason, found.expected_start) == (WaitReason.NEEDS, None)

    async def test_there_is_no_forecast_without_samples(self, store: JobStore) -> None:
        await busy(store)
        found = await why(store, await waits(store, job("true", runs_on="illumos")))
        assert found.expected_start is None

    async def test_cancelled_jobs_are_no_samples(self, store: JobStore, clock: ManualClock) -> None:
        for _ in range(3):
            await store.cancel_job(await waits(store, job("true", runs_on="illumos")))
        await busy(store)
        found = await why(store, await waits(store, job("true", runs_on="illumos")))
        assert found.expected_start is None


async def finish_jobs_of_50_seconds(store: JobStore, clock: ManualClock) -> None:
    """Jobs of illumos have lasted 50 seconds each."""
    for _ in range(5):
        running = await busy(store)
        clock.forward(50)
        await store.register(worker_record(WORKER))
        await finish(store, running)


def seconds_until(why: WaitExplanation, clock: ManualClock) -> tuple[float, float]:
    assert why.expected_start is not None
    return why.expected_start.earliest - clock.now, why.expected_start.latest - clock.now


async def finish(store: JobStore, job_id: str) -> None:
    assert await store.finish(AttemptKey(job_id=job_id, number=1), SUCCEEDED)
