"""What every job store keeps about workers; written against the protocol, run on every implementation."""

import itertools
from collections.abc import Sequence

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.quarantine import FAILURES_IN_A_ROW, FIRST_SECONDS, OTHERS_FIRST_SECONDS
from solstice_orchestrator.scheduling.workers import (
    FORGET_SECONDS,
    DrainOrder,
    OrderRefusal,
    PauseOrder,
    Presence,
    QuarantineOrder,
    ResumeOrder,
    WorkerJob,
    WorkerOrder,
    WorkerState,
    WorkerView,
)
from solstice_orchestrator.store import JobStore
from tests.builders import job
from tests.stores import (
    FAILED,
    LEASE,
    PROVISION_ERRORED,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    planned,
    request_of,
    worker_record,
)


async def the_worker(store: JobStore, worker_id: str = WORKER) -> WorkerView:
    view = await store.worker(worker_id)
    assert view is not None
    return view


async def steered(store: JobStore, order: WorkerOrder, worker_id: str = WORKER) -> WorkerView:
    view = await store.steer_worker(worker_id, order)
    assert isinstance(view, WorkerView)
    return view


NAMES = itertools.count()


async def ended(store: JobStore, *outcomes: Outcome, worker: str = WORKER) -> None:
    """Attempts of the worker at jobs of different names end so, one after the other."""
    for outcome in outcomes:
        await planned(store, job("true", name=f"job-{next(NAMES)}"), planner="planner")
        (claim,) = await claimed(store, worker=worker, limit=1)
        assert await store.finish(claim.key, outcome)


class TestRegister:
    async def test_a_worker_is_what_its_record_says(self, store: JobStore, clock: ManualClock) -> None:
        assert await store.register(worker_record(WORKER, name="quay")) is WorkerState.ACTIVE
        assert list(await store.workers()) == [
            WorkerView(
                worker_id=WORKER,
                name="quay",
                host="quay.example",
                version="1.2.3",
                slots={"linux": 4, "illumos": 1},
                limit=5,
                presence=Presence.ALIVE,
                state=WorkerState.ACTIVE,
                quarantined_until=None,
                failures_in_a_row=0,
                started_at=clock.now,
                seen_at=clock.now,
                jobs=(),
            )
        ]

    async def test_repeating_it_changes_nothing_but_the_heartbeat(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await steered(store, PauseOrder())
        before = await the_worker(store)
        clock.forward(1)
        assert await store.register(worker_record(WORKER)) is WorkerState.PAUSED
        after = await the_worker(store)
        assert (after.started_at, after.seen_at) == (before.started_at, clock.now)

    async def test_an_unregistered_worker_gets_jobs_and_has_to_register(self, store: JobStore) -> None:
        await planned(store)
        assert len(await claimed(store, worker="stranger")) == 1
        assert (await store.renew("stranger", [])).registered is False
        view = await the_worker(store, "stranger")
        assert (view.name, view.slots, len(view.jobs)) == ("stranger", {}, 1)
        await store.register(worker_record("stranger"))
        assert (await store.renew("stranger", [])).registered is True

    async def test_workers_are_listed_by_name_the_newest_of_a_name_first(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        for worker_id, name in (("b-1", "b"), ("a-1", "a"), ("b-2", "b")):
            clock.forward(1)
            await store.register(worker_record(worker_id, name=name))
        assert [view.worker_id for view in await store.workers()] == ["a-1", "b-2", "b-1"]

    async def test_what_it_runs_is_listed_oldest_first(self, store: JobStore, clock: ManualClock) -> None:
        await store.register(worker_record(WORKER))
        await planned(store, job("true", name="one"), job("true", name="two"))
        for _ in range(2):
            clock.forward(1)
            await claimed(store, limit=1)
        jobs = {view.name: view for view in await store.jobs(limit=9)}
        assert (await the_worker(store)).jobs == tuple(
            WorkerJob(
                job_id=jobs[name].job_id, name=name, runs_on="linux", attempt=1, started_at=clock.now - ago
            )
            for name, ago in (("one", 1), ("two", 0))
        )


class TestPresence:
    async def test_silence_for_a_lease_is_loss_and_a_word_ends_it(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        seen = []
        for seconds in (LEASE - 1, 1):
            clock.forward(seconds)
            seen.append((await the_worker(store)).presence)
        await store.renew(WORKER, [])
        seen.append((await the_worker(store)).presence)
        assert seen == [Presence.ALIVE, Presence.LOST, Presence.ALIVE]

    async def test_all_that_a_dead_worker_held_is_lost_with_it_also_what_it_claimed_last(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await planned(store, job("true", name="early"), job("true", name="late"))
        (early,) = await claimed(store, limit=1)
        clock.forward(LEASE / 2)
        await store.renew(WORKER, [early.key])
        clock.forward(LEASE / 2)
        (late,) = await claimed(store, limit=1)
        clock.forward(LEASE / 2)
        assert await store.rescue() == [early.key]
        clock.forward(LEASE / 2)
        assert await store.rescue() == [late.key]
        attempts = [*await store.attempts(early.key.job_id), *await store.attempts(late.key.job_id)]
        assert [attempt.reason for attempt in attempts] == [Reason.AGENT_LOST] * 2

    async def test_a_claim_that_met_a_renewal_is_lost_with_the_rest(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await planned(store)
        (claim,) = await claimed(store)
        clock.forward(1)
        await store.renew(WORKER, [])
        clock.forward(LEASE - 1)
        assert await store.rescue() == [claim.key]
        (attempt,) = await store.attempts(claim.key.job_id)
        assert attempt.reason is Reason.AGENT_LOST

    async def test_who_takes_leave_has_ended_and_is_not_lost(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await store.leave(WORKER)
        clock.forward(LEASE + 1)
        assert (await the_worker(store)).presence is Presence.ENDED

    async def test_the_gone_are_forgotten_after_a_day(self, store: JobStore, clock: ManualClock) -> None:
        await store.register(worker_record("gone"))
        await store.register(worker_record("ended"))
        await store.leave("ended")
        clock.forward(FORGET_SECONDS - 1)
        await store.register(worker_record(WORKER))
        await store.rescue()
        assert len(await store.workers()) == 3
        clock.forward(1)
        await store.rescue()
        assert [view.worker_id for view in await store.workers()] == [WORKER]
        assert await store.worker("gone") is None

    async def test_a_restarted_worker_is_one_not_two(self, store: JobStore, clock: ManualClock) -> None:
        await store.register(worker_record("first", name="quay"))
        await store.leave("first")
        await store.register(worker_record("second", name="quay"))
        assert [view.worker_id for view in await store.workers()] == ["second"]
        await store.register(worker_record("third", name="quay"))
        clock.forward(LEASE)
        await store.renew("third", [])
        await store.rescue()
        assert [view.worker_id for view in await store.workers()] == ["third"]


ENCUMBERED: Sequence[WorkerOrder] = (PauseOrder(), DrainOrder(), QuarantineOrder(seconds=30))


class TestSteer:
    @pytest.mark.parametrize("order", ENCUMBERED, ids=lambda order: type(order).__name__)
    async def test_who_is_not_active_gets_neither_jobs_nor_plans(
        self, store: JobStore, order: WorkerOrder
    ) -> None:
        await store.register(worker_record(WORKER))
        await planned(store)
        await admitted(store)
        await steered(store, order)
        assert await claimed(store) == ()
        assert list(await store.claim_planning(WORKER, 5)) == []
        assert len(await claimed(store, worker="another")) == 1
        assert len(await store.claim_planning("another", 5)) == 1

    @pytest.mark.parametrize("order", ENCUMBERED, ids=lambda order: type(order).__name__)
    async def test_running_jobs_continue_and_the_worker_gets_its_state(
        self, store: JobStore, order: WorkerOrder
    ) -> None:
        await store.register(worker_record(WORKER))
        await planned(store)
        (claim,) = await claimed(store)
        view = await steered(store, order)
        renewal = await store.renew(WORKER, [claim.key])
        assert renewal.state is view.state is not WorkerState.ACTIVE
        assert (renewal.lost, renewal.cancelled) == (frozenset(), frozenset())
        assert await store.finish(claim.key, SUCCEEDED)

    async def test_the_resumed_get_jobs_again(self, store: JobStore) -> None:
        await store.register(worker_record(WORKER))
        await planned(store)
        for order in (PauseOrder(), QuarantineOrder(seconds=3600)):
            await steered(store, order)
            assert await claimed(store) == ()
            assert (await steered(store, ResumeOrder())).state is WorkerState.ACTIVE
        assert len(await claimed(store)) == 1

    async def test_a_quarantine_ends_at_its_time_by_itself(self, store: JobStore, clock: ManualClock) -> None:
        await store.register(worker_record(WORKER))
        await planned(store)
        view = await steered(store, QuarantineOrder(seconds=30))
        assert view.quarantined_until == clock.now + 30
        clock.forward(29)
        assert await claimed(store) == ()
        clock.forward(1)
        view = await the_worker(store)
        assert (view.state, view.quarantined_until) == (WorkerState.ACTIVE, None)
        assert len(await claimed(store)) == 1

    async def test_an_order_that_cannot_be_obeyed_changes_nothing(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        assert await store.steer_worker("nobody", PauseOrder()) is None
        await store.register(worker_record(WORKER))
        await steered(store, DrainOrder())
        assert await store.steer_worker(WORKER, ResumeOrder()) is OrderRefusal.IS_DRAINING
        assert (await the_worker(store)).state is WorkerState.DRAINING
        clock.forward(LEASE)
        assert await store.steer_worker(WORKER, DrainOrder()) is OrderRefusal.IS_GONE

    async def test_orders_wake_who_waits_for_changes(self, store: JobStore, opened: OpenStore) -> None:
        await store.register(worker_record(WORKER))
        async with opened() as other, other.changes() as changed:
            changed.clear()
            await steered(store, PauseOrder())
            await changed.wait()


class TestRestart:
    @pytest.mark.parametrize(
        ("order", "state"),
        [
            pytest.param(PauseOrder(), WorkerState.PAUSED, id="pause"),
            pytest.param(QuarantineOrder(seconds=30), WorkerState.QUARANTINED, id="quarantine"),
            pytest.param(DrainOrder(), WorkerState.ACTIVE, id="drain"),
        ],
    )
    async def test_a_process_begins_as_the_last_of_its_name_stood(
        self, store: JobStore, order: WorkerOrder, state: WorkerState
    ) -> None:
        await store.register(worker_record("first", name="quay"))
        await steered(store, order, "first")
        await store.leave("first")
        assert await store.register(worker_record("second", name="quay")) is state
        assert await store.register(worker_record("other", name="elsewhere")) is WorkerState.ACTIVE

    async def test_a_restart_does_not_clear_failures(self, store: JobStore) -> None:
        await store.register(worker_record("first", name="quay"))
        await ended(store, *[PROVISION_ERRORED] * (FAILURES_IN_A_ROW - 1), worker="first")
        await store.register(worker_record("second", name="quay"))
        await ended(store, PROVISION_ERRORED, worker="second")
        assert (await the_worker(store, "second")).state is WorkerState.QUARANTINED


class TestQuarantine:
    async def test_three_failures_in_a_row_begin_one_and_the_fourth_a_longer_one(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await ended(store, *[PROVISION_ERRORED] * FAILURES_IN_A_ROW)
        view = await the_worker(store)
        assert (view.state, view.failures_in_a_row) == (WorkerState.QUARANTINED, FAILURES_IN_A_ROW)
        assert view.quarantined_until == clock.now + FIRST_SECONDS
        clock.forward(FIRST_SECONDS + OTHERS_FIRST_SECONDS)
        await ended(store, PROVISION_ERRORED)
        assert (await the_worker(store)).quarantined_until == clock.now + 2 * FIRST_SECONDS

    @pytest.mark.parametrize("between", [SUCCEEDED, FAILED], ids=["success", "failure-of-the-job"])
    async def test_any_other_end_clears_the_count(self, store: JobStore, between: Outcome) -> None:
        await store.register(worker_record(WORKER))
        await ended(
            store, PROVISION_ERRORED, PROVISION_ERRORED, between, PROVISION_ERRORED, PROVISION_ERRORED
        )
        view = await the_worker(store)
        assert (view.state, view.failures_in_a_row) == (WorkerState.ACTIVE, 2)

    async def test_what_was_taken_away_or_handed_back_does_not_count(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await ended(store, RELEASED, RELEASED, RELEASED)
        await planned(store, *[job("true", name=str(number)) for number in range(5)])
        await claimed(store)
        clock.forward(LEASE)
        assert len(await store.rescue()) >= FAILURES_IN_A_ROW
        assert (await the_worker(store)).failures_in_a_row == 0

    async def test_a_late_end_of_a_lost_attempt_does_not_count(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await planned(store, *[job("true", name=str(number)) for number in range(FAILURES_IN_A_ROW)])
        claims = await claimed(store)
        clock.forward(LEASE)
        await store.rescue()
        failed = Outcome(state=JobState.ERRORED, reason=Reason.EXECUTOR_FAILED)
        assert [await store.finish(claim.key, failed) for claim in claims] == [False] * len(claims)
        assert (await the_worker(store)).failures_in_a_row == 0

    async def test_one_job_that_breaks_its_executor_again_and_again_begins_none(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        for _ in range(2):
            await planned(store, planner="planner")
            for _ in range(FAILURES_IN_A_ROW):
                clock.forward(3600)
                (claim,) = await claimed(store)
                assert await store.finish(claim.key, PROVISION_ERRORED)
        view = await the_worker(store)
        assert (view.state, view.failures_in_a_row) == (WorkerState.ACTIVE, 1)

    async def test_after_one_another_repository_goes_first_then_another_job_then_those_that_failed(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        names = [f"broken-{number}" for number in range(FAILURES_IN_A_ROW)]
        await planned(store, *(job("true", name=name) for name in names), request=request_of("bad/committer"))
        for claim in await claimed(store):
            assert await store.finish(claim.key, PROVISION_ERRORED)
        # Their waits are over, and they came first.
        clock.forward(3600)
        await store.rescue()
        await planned(
            store, job("true", name="sibling"), request=request_of("bad/committer"), planner="planner"
        )
        await planned(
            store, job("true", name="innocent"), request=request_of("good/neighbour"), planner="planner"
        )
        claims = [(await claimed(store, limit=1))[0] for _ in range(3)]
        assert [claim.spec.name for claim in claims[:2]] == ["innocent", "sibling"]
        assert claims[2].spec.name in names
        assert await store.finish(claims[0].key, SUCCEEDED)
        view = await the_worker(store)
        assert (view.state, view.failures_in_a_row) == (WorkerState.ACTIVE, 0)

    async def test_right_after_one_those_that_failed_wait_and_then_have_what_is_left_of_the_slots(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        names = [f"broken-{number}" for number in range(FAILURES_IN_A_ROW)]
        await planned(store, *(job("true", name=name) for name in names), request=request_of("bad/committer"))
        for claim in await claimed(store):
            assert await store.finish(claim.key, PROVISION_ERRORED)
        clock.forward(FIRST_SECONDS)
        await planned(store, job("true", name="first"), request=request_of("good/neighbour"))
        assert [claim.spec.name for claim in await claimed(store)] == ["first"]
        clock.forward(OTHERS_FIRST_SECONDS)
        await planned(store, job("true", name="second"), request=request_of("good/neighbour"))
        claims = await claimed(store, free={"linux": 3})
        assert [claims[0].spec.name, len(claims)] == ["second", 3]
        assert len(await claimed(store, worker="another")) == 1

    async def test_what_failed_is_known_to_the_next_process_of_the_name(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record("first", name="quay"))
        await planned(store, *(job("true", name=f"broken-{number}") for number in range(FAILURES_IN_A_ROW)))
        for claim in await claimed(store, worker="first"):
            assert await store.finish(claim.key, PROVISION_ERRORED)
        await store.register(worker_record("second", name="quay"))
        clock.forward(3600)
        await store.rescue()
        await store.renew("second", [])
        await planned(store, job("true", name="innocent"), request=request_of("good/neighbour"))
        (claim,) = await claimed(store, worker="second", limit=1)
        assert claim.spec.name == "innocent"

    async def test_one_worker_s_trouble_is_not_another_s(self, store: JobStore) -> None:
        await store.register(worker_record(WORKER))
        await store.register(worker_record("another"))
        await ended(store, *[PROVISION_ERRORED] * FAILURES_IN_A_ROW)
        await ended(store, SUCCEEDED, worker="another")
        assert (await the_worker(store)).state is WorkerState.QUARANTINED
        assert (await the_worker(store, "another")).state is WorkerState.ACTIVE
