"""Every store delays a run until its time, by the store's own clock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_common.values.times import format_seconds
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitExplanation, WaitReason
from solstice_orchestrator.scheduling.workers import PauseOrder
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.admin.check import check
from solstice_orchestrator.store.decisions.plan import BEGUN_AT_ONCE
from solstice_orchestrator.store.protocol import Admitted, Duplicate
from tests.builders import job, job_cancel, job_request
from tests.stores import (
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    worker_record,
)

HOUR = 3600.0


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[JobStore]:
    async with open_store(store_url, clock=clock) as opened:
        yield opened


def later(clock: ManualClock, seconds: float = HOUR, **changes: Any) -> JobRequestV1:
    """A request that is not to start before so many seconds have passed."""
    return job_request(not_before=format_seconds(clock() + seconds), **changes)


async def state(store: JobStore, run_id: str) -> RunState:
    run = await store.run(run_id)
    assert run is not None
    return run.state


async def planned_next(store: JobStore, *, worker: str = WORKER) -> list[str]:
    """The ids of all runs that may be planned now."""
    return [task.run_id for task in await store.claim_planning(worker, 1000)]


class TestTime:
    async def test_it_is_planned_at_its_time_and_not_before(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        run_id = await admitted(store, later(clock))
        clock.forward(HOUR - 0.5)
        assert await planned_next(store) == []
        assert await state(store, run_id) is RunState.DELAYED
        clock.forward(0.5)
        assert await planned_next(store) == [run_id]
        assert await state(store, run_id) is RunState.PLANNING

    @pytest.mark.parametrize("seconds", [0.0, -HOUR], ids=["now", "past"])
    async def test_a_time_that_has_come_is_no_delay(
        self, store: JobStore, clock: ManualClock, seconds: float
    ) -> None:
        run_id = await admitted(store, later(clock, seconds))
        assert await state(store, run_id) is RunState.PLANNING
        assert await planned_next(store) == [run_id]

    async def test_those_that_come_without_delay_go_by(self, store: JobStore, clock: ManualClock) -> None:
        await admitted(store, later(clock))
        soon = await admitted(store)
        assert await planned_next(store) == [soon]

    async def test_the_pause_until_the_next_one_is_by_the_clock_of_the_store(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        assert await store.planning_pause() is None
        await store.admit([later(clock, 2 * HOUR), later(clock, HOUR), job_request()])
        assert await store.planning_pause() == pytest.approx(HOUR, abs=0.01)
        clock.forward(-HOUR)
        assert await store.planning_pause() == pytest.approx(2 * HOUR, abs=0.01)
        clock.forward(10 * HOUR)
        assert await store.planning_pause() == 0
        assert len(await planned_next(store)) == 3
        assert await store.planning_pause() is None

    async def test_a_clock_that_is_set_back_takes_nothing_back(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        run_id = await admitted(store, later(clock))
        clock.forward(HOUR)
        task = await planning_task(store)
        clock.forward(-2 * HOUR)
        assert await store.planned(task, [job("true")])
        assert await state(store, run_id) is RunState.WAITING

    async def test_more_than_begin_together_all_begin(self, store: JobStore, clock: ManualClock) -> None:
        many = BEGUN_AT_ONCE + 10
        await store.admit([later(clock) for _ in range(many)])
        clock.forward(HOUR)
        found = [await planned_next(store), await planned_next(store)]
        assert [len(each) for each in found] == [BEGUN_AT_ONCE, 10]
        assert len({run_id for each in found for run_id in each}) == many

    async def test_of_several_who_look_at_its_time_one_gets_it(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        runs = [await admitted(store, later(clock)) for _ in range(5)]
        clock.forward(HOUR)
        found = await asyncio.gather(*(planned_next(store, worker=f"worker-{number}") for number in range(4)))
        # A claim that runs while another one begins them may see none of them; the next claim does.
        found.append(await planned_next(store))
        assert sorted(run_id for each in found for run_id in each) == sorted(runs)
        begun = [each.run_id for each in await outbox_statuses(store) if each.state == RunState.PLANNING]
        assert sorted(begun) == sorted(runs)

    async def test_it_begins_although_no_worker_may_plan_it(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.register(worker_record(WORKER))
        await store.steer_worker(WORKER, PauseOrder())
        run_id = await admitted(store, later(clock))
        clock.forward(HOUR)
        await store.renew(WORKER, [])
        assert await planned_next(store) == []
        assert await state(store, run_id) is RunState.PLANNING


class TestOutside:
    async def test_the_first_status_says_when_and_the_next_that_it_is_time(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        request = later(clock)
        await admitted(store, request)
        clock.forward(HOUR)
        await planned_next(store)
        assert [(each.sequence, each.state, each.description) for each in await outbox_statuses(store)] == [
            (1, "delayed", f"Accepted; it starts at {request.not_before}"),
            (2, "planning", "Accepted; its workflow will be read next"),
        ]

    async def test_readers_see_when_it_is_to_start(self, store: JobStore, clock: ManualClock) -> None:
        due = clock() + HOUR
        run_id = await admitted(store, later(clock))
        soon = await admitted(store)
        for run_state in (RunState.DELAYED, RunState.PLANNING):
            page = await store.runs(limit=9, state=run_state)
            shown = [(run.run_id, run.not_before) for run in page.runs]
            assert shown == ([(run_id, due)] if run_state is RunState.DELAYED else [(soon, None)])

    async def why(self, store: JobStore, run_id: str) -> WaitExplanation:
        facts = await store.planning(run_id)
        assert facts is not None
        why = explain(facts)
        assert why is not None
        return why

    async def test_why_says_until_when(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await admitted(store, later(clock))
        why = await self.why(store, run_id)
        assert (why.reason, why.until) == (WaitReason.NOT_BEFORE, clock() + HOUR)
        assert why.expected_start is not None
        assert why.expected_start.earliest == why.expected_start.latest == clock() + HOUR
        clock.forward(HOUR)
        why = await self.why(store, run_id)
        assert why.reason is WaitReason.NOT_PLANNED_YET

    async def test_it_is_no_backlog_until_it_is_due(self, store: JobStore, clock: ManualClock) -> None:
        await store.admit([*(later(clock) for _ in range(20)), job_request()])
        assert await store.delayed() == 20
        assert await store.backlog(100) == 1
        clock.forward(HOUR)
        await store.claim_planning(WORKER, 1)
        assert await store.delayed() == 0
        assert await store.backlog(100) == 20

    async def test_the_store_is_well_and_keeps_it_forever(
        self, store: JobStore, store_url: str, clock: ManualClock
    ) -> None:
        run_id = await admitted(store, later(clock, 100 * 24 * HOUR))
        clock.forward(90 * 24 * HOUR)
        assert await store.purgeable(HOUR) == 0
        assert not (await store.purge(HOUR, 100)).runs
        assert await state(store, run_id) is RunState.DELAYED
        assert (await check(store_url)).well


class TestSteering:
    async def test_cancelled_before_its_time_it_never_begins(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        run_id = await admitted(store, later(clock))
        run = await store.cancel_run(run_id)
        assert run is not None
        assert run.state is RunState.CANCELLED
        assert await store.delayed() == 0
        assert await store.planning_pause() is None
        clock.forward(HOUR)
        assert await planned_next(store) == []
        assert [each.state for each in await outbox_statuses(store)] == ["delayed", "cancelled"]

    async def test_it_ends_with_its_change_request(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await admitted(
            store, later(clock, event="pull_request", change_number=7, ref="refs/pull/7/head")
        )
        (cancelled,) = await store.cancel_changes([job_cancel(submitted_at="2026-03-01T13:00:00Z")])
        assert cancelled.run_ids == (run_id,)
        assert await state(store, run_id) is RunState.CANCELLED

    async def test_a_request_to_cancel_that_came_before_it_ends_it(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await store.cancel_changes([job_cancel(submitted_at="2026-03-01T13:00:00Z")])
        run_id = await admitted(
            store, later(clock, event="pull_request", change_number=7, ref="refs/pull/7/head")
        )
        assert await state(store, run_id) is RunState.CANCELLED

    async def test_run_again_it_starts_at_once(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await admitted(store, later(clock))
        again = await store.rerun(run_id)
        assert again is not None
        assert (again.state, again.not_before, again.rerun_of) == (RunState.PLANNING, None, run_id)
        assert await planned_next(store) == [again.run_id]
        assert await state(store, run_id) is RunState.DELAYED

    async def test_asked_for_twice_under_one_key_it_keeps_its_first_time(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        first = later(clock, idempotency_key="tonight")
        (admission,) = await store.admit([first])
        assert isinstance(admission, Admitted)
        assert await store.admit([later(clock, 2 * HOUR, idempotency_key="tonight")]) == [
            Duplicate(run_id=admission.run_id)
        ]
        clock.forward(HOUR)
        assert await planned_next(store) == [admission.run_id]


class TestPlaces:
    """A run takes its place in its branch or group only when it is planned."""

    SPRING = "refs/heads/spring"

    async def plan(self, store: JobStore) -> str:
        task = await planning_task(store)
        assert await store.planned(task, [job("true")])
        return task.run_id

    async def test_while_it_is_delayed_it_ends_no_run(self, store: JobStore, clock: ManualClock) -> None:
        under_way = await planned(store, request=job_request(ref=self.SPRING))
        await admitted(store, later(clock, ref=self.SPRING, submitted_at="2026-03-02T12:00:00Z"))
        assert await state(store, under_way) is RunState.WAITING

    async def test_once_it_is_planned_it_takes_the_place_of_an_older_push(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        under_way = await planned(store, request=job_request(ref=self.SPRING))
        delayed = await admitted(
            store, later(clock, ref=self.SPRING, commit_sha="b" * 40, submitted_at="2026-03-02T12:00:00Z")
        )
        clock.forward(HOUR)
        assert await self.plan(store) == delayed
        assert await state(store, under_way) is RunState.CANCELLED
        assert await state(store, delayed) is RunState.WAITING

    async def test_a_push_that_came_while_it_was_delayed_is_the_newer_one(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        delayed = await admitted(store, later(clock, ref=self.SPRING))
        newer = await planned(
            store,
            request=job_request(ref=self.SPRING, commit_sha="b" * 40, submitted_at="2026-03-02T12:00:00Z"),
        )
        assert await state(store, delayed) is RunState.DELAYED
        clock.forward(HOUR)
        assert await self.plan(store) == delayed
        assert await state(store, newer) is RunState.WAITING
        assert await state(store, delayed) is RunState.CANCELLED

    async def test_a_request_by_hand_supersedes_no_run(self, store: JobStore, clock: ManualClock) -> None:
        under_way = await planned(store, request=job_request(ref=self.SPRING))
        by_hand = await admitted(
            store, later(clock, ref=self.SPRING, source="manual", event="manual", commit_sha="b" * 40)
        )
        clock.forward(HOUR)
        assert await self.plan(store) == by_hand
        assert await state(store, under_way) is RunState.WAITING
        (claim, _) = await claimed(store)
        assert await store.finish(claim.key, SUCCEEDED)
