"""Every store cancels what was requested of a change before the cancel, in either order."""

import asyncio
import itertools
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState, RunState
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import Cancelled
from tests.builders import job, job_cancel, job_request
from tests.stores import (
    CANCELLED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
)

REQUESTED_AT = 1_799_999_000.0
"""Before the clock's time: messages take their time."""


def of_change(seconds: float, **changes: Any) -> JobRequestV1:
    """A request of pull request 7 that was asked for so many seconds after `ASKED`."""
    fields = {"change_number": 7, "event": "change_request", "ref": "refs/pull/7/head", **changes}
    return job_request(submitted_at=format_seconds(REQUESTED_AT + seconds), **fields)


async def cancel(store: JobStore, seconds: float, **changes: Any) -> Cancelled:
    """Cancel pull request 7 as requested so many seconds after `ASKED`."""
    cancel = job_cancel(submitted_at=format_seconds(REQUESTED_AT + seconds), **changes)
    (cancelled,) = await store.cancel_changes([cancel])
    return cancelled


async def state_of(store: JobStore, run_id: str) -> RunState:
    run = await store.run(run_id)
    assert run is not None
    return run.state


class TestWhatIsThere:
    async def test_waiting_and_unplanned_runs_end_at_once_and_say_who_wanted_it(
        self, store: JobStore
    ) -> None:
        waiting = await planned(store, job("true", name="lint"), request=of_change(0))
        unplanned = await admitted(store, of_change(1))
        assert await cancel(store, 2) == Cancelled(run_ids=(waiting, unplanned), known=True)
        assert await state_of(store, waiting) is await state_of(store, unplanned) is RunState.CANCELLED
        last = {(each.run_id, each.context): each for each in await outbox_statuses(store)}
        for end in (last[waiting, "solstice/lint"], last[unplanned, "solstice"]):
            assert end.state == "cancelled"
            assert "/cancel by ada-brook" in str(end.description)
        (lint,) = await store.jobs(run_id=waiting, limit=9)
        assert (lint.reason, lint.detail) == (Reason.CANCEL_REQUESTED, "/cancel by ada-brook")

    async def test_a_running_job_is_ended_by_its_holder_and_says_who_wanted_it(self, store: JobStore) -> None:
        await planned(store, job("true"), request=of_change(0))
        (claim,) = await claimed(store)
        assert (await cancel(store, 1)).run_ids == (claim.run_id,)
        assert (await store.renew(WORKER, [claim.key])).cancelled == {claim.key}
        assert await store.finish(claim.key, CANCELLED)
        view = await store.job(claim.key.job_id)
        assert view is not None
        assert (view.state, view.detail) == (JobState.CANCELLED, "/cancel by ada-brook")

    async def test_a_run_that_is_being_planned_gets_no_jobs(self, store: JobStore) -> None:
        run_id = await admitted(store, of_change(0))
        task = await planning_task(store)
        assert (await cancel(store, 1)).run_ids == (run_id,)
        assert not await store.planned(task, [job("true")])
        assert await store.jobs(run_id=run_id, limit=9) == []

    async def test_jobs_that_wait_for_approval_end(self, store: JobStore) -> None:
        run_id = await planned(store, request=of_change(0, needs_approval=True))
        assert (await cancel(store, 1)).run_ids == (run_id,)
        assert await state_of(store, run_id) is RunState.CANCELLED

    @pytest.mark.parametrize(
        "other",
        [
            {"change_number": 8},
            {"change_number": None},
            {"source": "gitea"},
            {"repo_url": "https://forge.example/lantern/pier.git"},
        ],
        ids=["another number", "a push", "another forge", "another repository"],
    )
    async def test_nothing_else_is_touched(self, store: JobStore, other: dict[str, Any]) -> None:
        fields = {name: value for name, value in {"change_number": 7, **other}.items() if value is not None}
        request = job_request(submitted_at=format_seconds(REQUESTED_AT), **fields)
        run_id = await planned(store, request=request)
        assert await cancel(store, 1) == Cancelled(run_ids=(), known=False)
        assert await state_of(store, run_id) is RunState.WAITING

    async def test_what_has_ended_stays_as_it_is(self, store: JobStore) -> None:
        run_id = await planned(store, request=of_change(0))
        (claim,) = await claimed(store)
        assert await store.finish(claim.key, SUCCEEDED)
        assert await cancel(store, 1) == Cancelled(run_ids=(), known=True)
        assert await state_of(store, run_id) is RunState.SUCCEEDED

    async def test_saying_it_again_changes_nothing(self, store: JobStore) -> None:
        await planned(store, request=of_change(0))
        cancel = job_cancel(submitted_at=format_seconds(REQUESTED_AT + 1))
        await store.cancel_changes([cancel])
        before = await outbox_statuses(store)
        assert await store.cancel_changes([cancel, cancel]) == [Cancelled(run_ids=(), known=True)] * 2
        assert await outbox_statuses(store) == before

    async def test_a_rerun_is_asked_for_when_it_is_made(self, store: JobStore, clock: ManualClock) -> None:
        await planned(store, request=of_change(0))
        await cancel(store, 1)
        (run,) = (await store.runs(limit=9)).runs
        again = await store.rerun(run.run_id)
        assert again is not None
        assert again.state is RunState.PLANNING
        clock.forward(5)
        assert (await cancel(store, clock.now + 5 - REQUESTED_AT)).run_ids == (again.run_id,)


class TestOrder:
    async def test_what_was_asked_for_later_or_at_that_moment_is_left_alone(self, store: JobStore) -> None:
        older, same, newer = [await admitted(store, of_change(seconds)) for seconds in (0, 5, 9)]
        assert (await cancel(store, 5)).run_ids == (older,)
        assert await state_of(store, same) is await state_of(store, newer) is RunState.PLANNING

    async def test_what_was_asked_for_before_and_comes_later_ends_as_it_comes(self, store: JobStore) -> None:
        assert await cancel(store, 5) == Cancelled(run_ids=(), known=False)
        late = await admitted(store, of_change(0))
        assert await state_of(store, late) is RunState.CANCELLED
        run = await store.run(late)
        assert run is not None
        assert run.detail == "/cancel by ada-brook"
        newer = await admitted(store, of_change(6))
        assert await state_of(store, newer) is RunState.PLANNING
        assert [task.run_id for task in await store.claim_planning(WORKER, 9)] == [newer]

    async def test_an_older_cancel_that_comes_late_changes_nothing(self, store: JobStore) -> None:
        await cancel(store, 9)
        await cancel(store, 3, sender="ben-stone")
        run = await store.run(await admitted(store, of_change(5)))
        assert run is not None
        assert (run.state, run.detail) == (RunState.CANCELLED, "/cancel by ada-brook")

    async def test_a_cancel_from_the_future_is_of_now(self, store: JobStore, clock: ManualClock) -> None:
        await cancel(store, clock.now - REQUESTED_AT + 3600)
        clock.forward(10)
        run_id = await admitted(store, of_change(clock.now - REQUESTED_AT))
        assert await state_of(store, run_id) is RunState.PLANNING

    @pytest.mark.parametrize(
        "order", list(itertools.permutations(["push", "cancel", "retest"])), ids="-".join
    )
    async def test_any_order_of_arrival_builds_the_same(
        self, store: JobStore, order: tuple[str, ...]
    ) -> None:
        push, retest = of_change(0), of_change(2)
        for what in order:
            if what == "cancel":
                await cancel(store, 1)
            else:
                await store.admit([push if what == "push" else retest])
        states = {}
        for request in (push, retest):
            run = await store.run_of_request(request.request_id)
            assert run is not None
            states[request.request_id] = run.state
        assert states == {push.request_id: RunState.CANCELLED, retest.request_id: RunState.PLANNING}

    async def test_cancels_and_requests_of_one_moment_never_miss_each_other(self, store_url: str) -> None:
        async with open_store(store_url) as one, open_store(store_url) as two:
            # By the stores' own clock: all of it was long ago.
            requests = [of_change(-(10**8), change_number=number) for number in range(1, 31)]
            cancels = [
                job_cancel(change_number=number, submitted_at=format_seconds(REQUESTED_AT - 10**7))
                for number in range(1, 31)
            ]
            await asyncio.gather(
                *(one.admit([request]) for request in requests),
                *(two.cancel_changes([cancel]) for cancel in reversed(cancels)),
            )
            runs = (await one.runs(limit=100)).runs
            assert len(runs) == 30
            assert {run.state for run in runs} == {RunState.CANCELLED}

    async def test_an_old_cancel_is_forgotten(self, store: JobStore, clock: ManualClock) -> None:
        await cancel(store, 5)
        clock.forward(100)
        await store.purge(50, 10)
        assert await state_of(store, await admitted(store, of_change(0))) is RunState.PLANNING

    async def test_an_address_of_any_length_is_one(self, store: JobStore) -> None:
        url = "https://forge.example/" + "\u4e16" * 2020
        run_id = await planned(store, request=of_change(0, repo_url=url))
        assert (await cancel(store, 1, repo_url=url)).run_ids == (run_id,)
