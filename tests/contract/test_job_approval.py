"""Every job store keeps jobs that need approval, and starts them once approved."""

from collections.abc import Sequence
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Concurrency, JobSpec, Reason, RunSpec
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.superseding.policy import SupersedeRule
from tests.builders import job, job_request
from tests.stores import (
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
)

WAITS = (JobState.APPROVAL, Reason.PLANNED)
BUILD, SHIP = job("true", name="build"), job("true", name="ship", needs=("build",))


def change(**changes: Any) -> JobRequestV1:
    """A stranger's change request."""
    return job_request(
        **{
            "event": "change_request",
            "ref": "refs/pull/7/head",
            "change_number": 7,
            "trusted": False,
            "head_repo_url": "https://forge.example/gull/harbour.git",
            "needs_approval": True,
            **changes,
        }
    )


def word(**changes: Any) -> JobRequestV1:
    """The approval of that commit by a person who may push."""
    return change(needs_approval=None, approves=True, **changes)


async def states(store: JobStore, run_id: str) -> Sequence[tuple[JobState, Reason]]:
    return [(view.state, view.reason) for view in await store.jobs(run_id=run_id, limit=100)]


async def with_group(store: JobStore, request: JobRequestV1, *specs: JobSpec, whole: bool) -> str:
    """A run that asks for a group, by itself or by its job."""
    group = Concurrency(group="deploy")
    run_id = await admitted(store, request)
    spec = job("true", concurrency=None if whole else group)
    run_spec = RunSpec(concurrency=group if whole else None)
    assert await store.planned(await planning_task(store), specs or [spec], run_spec)
    return run_id


class TestWaiting:
    async def test_jobs_of_a_request_that_needs_it_wait_for_approval(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, SHIP, request=change())
        assert await states(store, run_id) == [WAITS, WAITS]
        assert not await claimed(store)
        view = await store.run(run_id)
        assert view is not None
        assert view.state is RunState.WAITING

    async def test_statuses_say_so(self, store: JobStore) -> None:
        await planned(store, BUILD, request=change())
        (status,) = [status for status in await outbox_statuses(store) if status.job_name == "build"]
        assert (status.state, status.description) == ("approval", "Waits for approval")

    async def test_why_says_who_may_help(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, request=change())
        (view,) = await store.jobs(run_id=run_id, limit=1)
        facts = await store.waiting(view.job_id)
        assert facts is not None
        why = explain(facts)
        assert why is not None
        assert why.reason is WaitReason.APPROVAL
        assert f"solstice approve {run_id}" in why.detail

    async def test_time_before_the_approval_does_not_count_for_the_run(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        run_id = await admitted(store, change())
        assert await store.planned(await planning_task(store), [BUILD], RunSpec(timeout_seconds=100.0))
        clock.forward(1000)
        await store.rescue()
        assert await states(store, run_id) == [WAITS]
        await store.approve_run(run_id)
        clock.forward(99)
        await store.rescue()
        assert await states(store, run_id) == [(JobState.WAITING, Reason.APPROVED)]
        clock.forward(1)
        await store.rescue()
        assert await states(store, run_id) == [(JobState.TIMED_OUT, Reason.RUN_TIMEOUT)]

    @pytest.mark.parametrize("whole", [True, False], ids=["the run's", "a job's"])
    async def test_it_holds_no_group_before(self, store: JobStore, *, whole: bool) -> None:
        waiting = await with_group(store, change(), whole=whole)
        other = await with_group(store, change(change_number=8, needs_approval=None), whole=whole)
        ((state, _),) = await states(store, other)
        assert state is JobState.WAITING
        await store.approve_run(waiting)
        assert await states(store, waiting) == [(JobState.BLOCKED, Reason.CONCURRENCY_GROUP)]
        (claim,) = await claimed(store)
        assert claim.run_id == other
        await store.finish(claim.key, SUCCEEDED)
        assert await states(store, waiting) == [(JobState.WAITING, Reason.PLANNED)]


class TestApproving:
    async def test_approved_jobs_go_on_like_others(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, SHIP, request=change())
        view = await store.approve_run(run_id)
        assert view is not None
        assert view.state is RunState.WAITING
        assert await states(store, run_id) == [
            (JobState.WAITING, Reason.APPROVED),
            (JobState.BLOCKED, Reason.APPROVED),
        ]
        (build,) = await claimed(store)
        await store.finish(build.key, SUCCEEDED)
        (ship,) = await claimed(store)
        await store.finish(ship.key, SUCCEEDED)
        ended = await store.run(run_id)
        assert ended is not None
        assert ended.state is RunState.SUCCEEDED

    async def test_saying_it_again_changes_nothing(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, request=change())
        await store.approve_run(run_id)
        before = len(await outbox_statuses(store)), await states(store, run_id)
        await store.approve_run(run_id)
        assert (len(await outbox_statuses(store)), await states(store, run_id)) == before

    @pytest.mark.parametrize("request_", [job_request(), word()], ids=["a push", "a word"])
    async def test_jobs_that_wait_for_no_approval_are_unchanged(
        self, store: JobStore, request_: JobRequestV1
    ) -> None:
        run_id = await planned(store, BUILD, request=request_)
        assert await store.approve_run(run_id) is not None
        assert await states(store, run_id) == [(JobState.WAITING, Reason.PLANNED)]

    async def test_a_run_that_was_cancelled_stays_so(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, request=change())
        await store.cancel_run(run_id)
        await store.approve_run(run_id)
        assert await states(store, run_id) == [(JobState.CANCELLED, Reason.CANCEL_REQUESTED)]

    async def test_a_run_that_is_not_there_is_none(self, store: JobStore) -> None:
        assert await store.approve_run("x") is None

    async def test_a_rerun_needs_another_word(self, store: JobStore) -> None:
        run_id = await planned(store, BUILD, request=change())
        await store.approve_run(run_id)
        again = await store.rerun(run_id)
        assert again is not None
        assert await store.planned(await planning_task(store, WORKER), [BUILD])
        assert await states(store, again.run_id) == [WAITS]


class TestWord:
    @pytest.mark.parametrize("rule", SupersedeRule)
    async def test_a_request_that_approves_takes_the_place_of_the_run_that_waits(
        self, opened: OpenStore, rule: SupersedeRule
    ) -> None:
        async with opened(supersede=rule) as store:
            waiting = await planned(store, BUILD, request=change())
            approved = await planned(store, BUILD, request=word())
            assert await states(store, waiting) == [(JobState.CANCELLED, Reason.SUPERSEDED)]
            assert await states(store, approved) == [(JobState.WAITING, Reason.PLANNED)]

    async def test_it_is_a_word_for_one_commit(self, opened: OpenStore) -> None:
        async with opened(supersede=SupersedeRule.OFF) as store:
            waiting = await planned(store, BUILD, request=change(commit_sha="b" * 40))
            await planned(store, BUILD, request=word())
            assert await states(store, waiting) == [WAITS]

    async def test_it_is_a_word_for_one_change_request(self, store: JobStore) -> None:
        waiting = await planned(store, BUILD, request=change(change_number=8))
        await planned(store, BUILD, request=word())
        assert await states(store, waiting) == [WAITS]

    async def test_what_it_finds_approved_runs_on_where_nothing_is_superseded(
        self, opened: OpenStore
    ) -> None:
        async with opened(supersede=SupersedeRule.OFF) as store:
            run_id = await planned(store, BUILD, request=change())
            await store.approve_run(run_id)
            await planned(store, BUILD, request=word())
            assert await states(store, run_id) == [(JobState.WAITING, Reason.APPROVED)]
