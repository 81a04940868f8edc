"""Limits, retries and conditions in every job store."""

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, JobCondition, JobSpec, Outcome, Reason, RunSpec
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import Claim, OutboxKind
from tests.builders import job
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    running,
    state_of,
)

TIMED_OUT = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
SILENT = Outcome(state=JobState.TIMED_OUT, reason=Reason.NO_OUTPUT, detail="the job wrote nothing for 60 s")


async def limited(store: JobStore, run: RunSpec, *specs: JobSpec) -> str:
    """The id of a new run with this `run` section in its workflow."""
    run_id = await admitted(store)
    assert await store.planned(await planning_task(store), specs, run)
    return run_id


async def states(store: JobStore, run_id: str) -> list[tuple[JobState, Reason]]:
    return [(view.state, view.reason) for view in await store.jobs(run_id=run_id, limit=100)]


async def run_state(store: JobStore, run_id: str) -> RunState:
    run = await store.run(run_id)
    assert run is not None
    return run.state


class TestRetries:
    @pytest.mark.parametrize("end", [FAILED, TIMED_OUT, SILENT], ids=lambda end: end.reason.value)
    async def test_a_job_that_fails_by_itself_has_as_many_tries_as_its_author_allows(
        self, store: JobStore, end: Outcome
    ) -> None:
        claim = await running(store, job("true", retries=2), job("true", name="next", needs=("test",)))
        for _ in range(2):
            assert await store.finish(claim.key, end)
            assert await state_of(store, claim.key.job_id) == (JobState.WAITING, Reason.RETRYING)
            (claim,) = await claimed(store)
        assert await store.finish(claim.key, end)
        view = await store.job(claim.key.job_id)
        assert view is not None
        assert (view.retries, view.retried) == (2, 2)
        assert await state_of(store, claim.key.job_id) == (end.state, end.reason)
        assert (await states(store, claim.run_id))[1] == (JobState.SKIPPED, Reason.NEEDS_FAILED)
        attempts = await store.attempts(claim.key.job_id)
        assert [(attempt.state, attempt.reason) for attempt in attempts] == [(end.state, end.reason)] * 3

    async def test_a_try_that_succeeds_is_the_last(self, store: JobStore) -> None:
        claim = await running(store, job("true", retries=5))
        await store.finish(claim.key, FAILED)
        (again,) = await claimed(store)
        await store.finish(again.key, SUCCEEDED)
        assert await run_state(store, claim.run_id) is RunState.SUCCEEDED
        assert await claimed(store) == ()

    async def test_statuses_count_the_tries(self, store: JobStore) -> None:
        claim = await running(store, job("true", retries=2))
        for _ in range(2):
            await store.finish(claim.key, FAILED)
            (claim,) = await claimed(store)
        descriptions = [
            status.description for status in await outbox_statuses(store) if status.reason == "retrying"
        ]
        assert descriptions == [
            "Retrying 1 of 2: step 'step 1' ended with exit code 3",
            "Retrying 2 of 2: step 'step 1' ended with exit code 3",
        ]

    async def test_the_authors_budget_and_ours_are_not_spent_by_each_other(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await running(store, job("true", retries=2))
        ends = [FAILED, *[CHECKOUT_ERRORED] * (MAX_ATTEMPTS - 1), FAILED]
        for end in ends:
            await store.finish(claim.key, end)
            assert not (await state_of(store, claim.key.job_id))[0].final
            clock.forward(1000)
            (claim,) = await claimed(store)
        await store.finish(claim.key, CHECKOUT_ERRORED)
        assert await state_of(store, claim.key.job_id) == (JobState.ERRORED, Reason.CHECKOUT_FAILED)
        (dead_letter,) = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
        history = dead_letter.headers["x-solstice-history"].splitlines()
        assert len(history) == len(ends) + 1
        for line, end in zip(history, [*ends, CHECKOUT_ERRORED], strict=True):
            assert f": {end.reason.value} (" in line

    @pytest.mark.parametrize("end", [SUCCEEDED, CANCELLED, RELEASED], ids=lambda end: end.reason.value)
    async def test_what_is_no_failure_spends_nothing(self, store: JobStore, end: Outcome) -> None:
        claim = await running(store, job("true", retries=1))
        await store.finish(claim.key, end)
        assert (await state_of(store, claim.key.job_id))[1] is end.reason

    async def test_a_job_that_a_person_cancelled_is_not_tried_again(self, store: JobStore) -> None:
        claim = await running(store, job("true", retries=5))
        await store.cancel_job(claim.key.job_id)
        await store.finish(claim.key, FAILED)
        assert await state_of(store, claim.key.job_id) == (JobState.FAILED, Reason.STEP_FAILED)

    async def test_saying_the_end_twice_spends_one_try(self, store: JobStore) -> None:
        claim = await running(store, job("true", retries=2))
        assert await store.finish(claim.key, FAILED)
        assert await store.finish(claim.key, FAILED)
        (again,) = await claimed(store)
        assert again.key.number == 2
        assert await store.finish(claim.key, FAILED)
        assert await state_of(store, claim.key.job_id) == (JobState.RUNNING, Reason.CLAIMED)


class TestConditions:
    @pytest.mark.parametrize("end", [SUCCEEDED, FAILED, TIMED_OUT], ids=lambda end: end.state.value)
    async def test_always_runs_after_any_end(self, store: JobStore, end: Outcome) -> None:
        claim = await running(
            store,
            job("true", name="test"),
            job("true", name="ship", needs=("test",)),
            job("true", name="report", needs=("test", "ship"), condition=JobCondition.ALWAYS),
        )
        await store.finish(claim.key, end)
        while claims := await claimed(store):
            for each in claims:
                await store.finish(each.key, SUCCEEDED)
        assert (await states(store, claim.run_id))[2] == (JobState.SUCCEEDED, Reason.COMPLETED)
        assert await run_state(store, claim.run_id) is RunState(end.state.value)

    async def test_it_runs_after_a_job_that_a_person_cancelled(self, store: JobStore) -> None:
        run_id = await planned(
            store,
            job("true", name="test"),
            job("true", name="report", needs=("test",), condition=JobCondition.ALWAYS),
        )
        (test, _) = await store.jobs(run_id=run_id, limit=9)
        await store.cancel_job(test.job_id)
        assert (await states(store, run_id))[1] == (JobState.WAITING, Reason.NEEDS_MET)

    async def test_it_does_not_run_when_the_whole_run_was_cancelled(self, store: JobStore) -> None:
        claim = await running(
            store,
            job("true", name="test"),
            job("true", name="report", needs=("test",), condition=JobCondition.ALWAYS),
        )
        await store.cancel_run(claim.run_id)
        await store.finish(claim.key, CANCELLED)
        assert await states(store, claim.run_id) == [(JobState.CANCELLED, Reason.CANCEL_REQUESTED)] * 2


class TestRunTimeout:
    async def out_of_time(self, store: JobStore, clock: ManualClock) -> Claim:
        """A run out of time: one job runs and renews its lease, the others wait."""
        run_id = await limited(
            store,
            RunSpec(timeout_seconds=100),
            job("true", name="runs"),
            job("true", name="waits", runs_on="elsewhere"),
            job("true", name="blocked", needs=("runs",)),
            job("true", name="always", needs=("blocked",), condition=JobCondition.ALWAYS),
        )
        (claim,) = await claimed(store)
        assert claim.run_id == run_id
        clock.forward(50)
        await store.renew(WORKER, [claim.key])
        assert await store.rescue() == []
        assert JobState.TIMED_OUT not in {state for state, _ in await states(store, run_id)}
        clock.forward(50)
        await store.renew(WORKER, [claim.key])
        assert await store.rescue() == []
        return claim

    async def test_waiting_jobs_end_at_once_and_the_holder_of_a_running_one_gets_the_cancel(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await self.out_of_time(store, clock)
        assert await states(store, claim.run_id) == [
            (JobState.RUNNING, Reason.CLAIMED),
            *[(JobState.TIMED_OUT, Reason.RUN_TIMEOUT)] * 3,
        ]
        renewal = await store.renew(WORKER, [claim.key])
        assert set(renewal.cancelled) == {claim.key}
        assert await store.finish(claim.key, CANCELLED)
        assert await store.finish(claim.key, CANCELLED)
        assert (await states(store, claim.run_id))[0] == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)
        assert await run_state(store, claim.run_id) is RunState.TIMED_OUT
        (attempt,) = await store.attempts(claim.key.job_id)
        assert attempt.reason is Reason.RUN_TIMEOUT

    @pytest.mark.parametrize("end", [RELEASED, CHECKOUT_ERRORED], ids=lambda end: end.reason.value)
    async def test_what_is_handed_back_afterwards_does_not_run_again(
        self, store: JobStore, clock: ManualClock, end: Outcome
    ) -> None:
        claim = await self.out_of_time(store, clock)
        await store.finish(claim.key, end)
        assert await state_of(store, claim.key.job_id) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)

    async def test_a_worker_that_is_gone_is_not_waited_for(self, store: JobStore, clock: ManualClock) -> None:
        claim = await self.out_of_time(store, clock)
        clock.forward(LEASE)
        assert await store.rescue() == [claim.key]
        assert await state_of(store, claim.key.job_id) == (JobState.TIMED_OUT, Reason.RUN_TIMEOUT)
        assert (await store.renew(WORKER, [claim.key])).lost == {claim.key}

    async def test_a_job_that_succeeded_before_the_cancel_arrived_keeps_its_end(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await self.out_of_time(store, clock)
        assert await store.finish(claim.key, SUCCEEDED)
        assert await state_of(store, claim.key.job_id) == (JobState.SUCCEEDED, Reason.COMPLETED)
        assert await run_state(store, claim.run_id) is RunState.TIMED_OUT

    async def test_a_job_in_backoff_is_ended_too(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await limited(store, RunSpec(timeout_seconds=100), job("true"))
        (claim,) = await claimed(store)
        clock.forward(99)
        await store.finish(claim.key, CHECKOUT_ERRORED)
        clock.forward(1)
        await store.rescue()
        assert await states(store, run_id) == [(JobState.TIMED_OUT, Reason.RUN_TIMEOUT)]

    async def test_a_person_who_cancelled_before_is_named(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await limited(store, RunSpec(timeout_seconds=100), job("true"))
        (claim,) = await claimed(store)
        await store.cancel_run(run_id)
        clock.forward(100)
        await store.renew(WORKER, [claim.key])
        await store.rescue()
        await store.finish(claim.key, CANCELLED)
        assert await states(store, run_id) == [(JobState.CANCELLED, Reason.CANCEL_REQUESTED)]

    async def test_a_run_that_ended_in_time_is_left_alone(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await limited(store, RunSpec(timeout_seconds=100), job("true"))
        (claim,) = await claimed(store)
        await store.finish(claim.key, SUCCEEDED)
        before = len(await outbox_statuses(store))
        clock.forward(1000)
        await store.rescue()
        assert await run_state(store, run_id) is RunState.SUCCEEDED
        assert len(await outbox_statuses(store)) == before

    async def test_without_a_limit_a_run_may_wait_forever(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await planned(store)
        clock.forward(1e7)
        await store.rescue()
        assert await states(store, run_id) == [(JobState.WAITING, Reason.PLANNED)]


class TestCancelledWorkers:
    @pytest.mark.parametrize("whole", [True, False], ids=["run", "job"])
    async def test_a_cancelled_job_of_a_dead_worker_ends_as_cancelled_and_fences_its_late_holder(
        self, store: JobStore, clock: ManualClock, whole: bool
    ) -> None:
        claim = await running(store, job("true", retries=3))
        if whole:
            await store.cancel_run(claim.run_id)
        else:
            await store.cancel_job(claim.key.job_id)
        assert set((await store.renew(WORKER, [claim.key])).cancelled) == {claim.key}
        clock.forward(2 * LEASE)
        assert await store.rescue() == [claim.key]
        assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
        assert (await store.renew(WORKER, [claim.key])).lost == {claim.key}
        assert await claimed(store, worker="worker-b") == ()


class TestLateReleases:
    async def test_what_is_handed_back_in_time_does_not_count(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await running(store)
        for number in range(1, 3 * MAX_ATTEMPTS):
            assert claim.key.number == number
            clock.forward(LEASE - 1)
            await store.finish(claim.key, RELEASED)
            (claim,) = await claimed(store)

    async def test_what_is_handed_back_after_its_lease_counts_as_if_it_had_been_rescued(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await running(store)
        for _ in range(MAX_ATTEMPTS):
            clock.forward(LEASE)
            await store.finish(claim.key, RELEASED)
            clock.forward(1000)
            for again in await claimed(store):
                claim = again
        assert await state_of(store, claim.key.job_id) == (JobState.ERRORED, Reason.LEASE_EXPIRED)
        assert claim.key.number == MAX_ATTEMPTS
