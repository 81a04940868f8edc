"""Every store recognises an older push that comes late, and supersedes nothing newer with it."""

import asyncio
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_orchestrator.domain.jobs import RunSpec
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.superseding.policy import SupersedeRule
from solstice_orchestrator.superseding.push_order import OrderAnswers, OrderQuestion, PushOrder
from tests.builders import job, job_request
from tests.stores import SUCCEEDED, WORKER, ManualClock, admitted, claimed, outbox_statuses, planning_task

C = [f"{number:040x}" for number in range(100)]


def push(number: int, **changes: Any) -> JobRequestV1:
    """Commit `number` was pushed onto the one before it; all deliveries say the same time."""
    fields = {"ref": "refs/heads/spring", "commit_sha": C[number], "before_sha": C[number - 1], **changes}
    return job_request(**fields)


async def put(
    store: JobStore,
    request: JobRequestV1,
    answers: OrderAnswers | None = None,
    run_spec: RunSpec | None = None,
) -> str:
    """The run of a request that comes and is planned now."""
    run_id = await admitted(store, request)
    stored = await store.planned(await planning_task(store), [job("true")], run_spec or RunSpec(), answers)
    assert stored is True
    return run_id


async def ended(store: JobStore) -> None:
    """All that waits runs, and succeeds."""
    for claim in await claimed(store):
        assert await store.finish(claim.key, SUCCEEDED)


async def states(store: JobStore, *run_ids: str) -> list[RunState]:
    found = [await store.run(run_id) for run_id in run_ids]
    return [run.state for run in found if run is not None]


def question(late: int, newest: int) -> OrderQuestion:
    return OrderQuestion(commit_sha=C[late], before_sha=C[late - 1], newest_sha=C[newest])


class TestLinks:
    async def test_pushes_that_come_in_the_wrong_order_are_distinguished_without_asking(
        self, store: JobStore
    ) -> None:
        newest, middle, oldest = [await put(store, push(number), {}) for number in (3, 2, 1)]
        assert await states(store, newest, middle, oldest) == [
            RunState.WAITING,
            RunState.CANCELLED,
            RunState.CANCELLED,
        ]
        details = {each.run_id: each.description for each in await outbox_statuses(store) if each.job_id}
        assert details[oldest] == f"Cancelled for a newer run: superseded by {newest}"

    async def test_a_late_push_is_recognised_after_the_newer_run_has_ended(self, store: JobStore) -> None:
        newest = await put(store, push(2), {})
        await ended(store)
        late = await put(store, push(1), {})
        assert await states(store, newest, late) == [RunState.SUCCEEDED, RunState.CANCELLED]

    async def test_a_late_push_is_recognised_after_the_newer_run_was_removed(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await put(store, push(3), {})
        await put(store, push(2), {})
        await ended(store)
        clock.forward(100)
        assert (await store.purge(10, 10)).runs == 2
        late = await put(store, push(1), {})
        assert await states(store, late) == [RunState.CANCELLED]

    async def test_until_it_is_forgotten(self, store: JobStore, clock: ManualClock) -> None:
        await put(store, push(2), {})
        await ended(store)
        clock.forward(31 * 86_400)
        await store.purge(10, 10)
        late = await put(store, push(1), {})
        assert await states(store, late) == [RunState.WAITING]

    async def test_a_run_that_has_not_ended_is_not_forgotten(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        newest = await put(store, push(2), {})
        clock.forward(31 * 86_400)
        await store.purge(10, 10)
        late = await put(store, push(1), {})
        assert await states(store, newest, late) == [RunState.WAITING, RunState.CANCELLED]

    async def test_of_a_long_branch_the_newest_is_remembered_and_most_others_are_not(
        self, store: JobStore
    ) -> None:
        for number in range(2, 80):
            await put(store, push(number), {})
            await ended(store)
        late = await put(store, push(1, before_sha=None), {question_of(C[1], None, C[79]): PushOrder.OLDER})
        assert await states(store, late) == [RunState.CANCELLED]


def question_of(commit: str, before: str | None, newest: str) -> OrderQuestion:
    return OrderQuestion(commit_sha=commit, before_sha=before, newest_sha=newest)


class TestQuestions:
    async def test_what_is_unconnected_is_asked_for_and_changes_nothing(self, store: JobStore) -> None:
        newest = await put(store, push(5), {})
        late = await admitted(store, push(1))
        task, before = await planning_task(store), await outbox_statuses(store)
        assert await store.planned(task, [job("true")], RunSpec(), {}) == question(1, 5)
        assert await outbox_statuses(store) == before
        assert await states(store, newest, late) == [RunState.WAITING, RunState.PLANNING]
        assert await store.planned(task, [job("true")], RunSpec(), {question(1, 5): PushOrder.OLDER}) is True
        assert await states(store, newest, late) == [RunState.WAITING, RunState.CANCELLED]

    @pytest.mark.parametrize("newer_has_ended", [False, True], ids=["waiting", "ended"])
    async def test_an_older_push_makes_way_for_a_newer_one(
        self, store: JobStore, newer_has_ended: bool
    ) -> None:
        newest = await put(store, push(5), {})
        if newer_has_ended:
            await ended(store)
        late = await put(store, push(1), {question(1, 5): PushOrder.OLDER})
        assert await states(store, late) == [RunState.CANCELLED]
        next_one = await put(store, push(6), {})
        state = RunState.SUCCEEDED if newer_has_ended else RunState.CANCELLED
        assert await states(store, newest, next_one) == [state, RunState.WAITING]

    async def test_a_newer_push_takes_the_place_of_the_older_one(self, store: JobStore) -> None:
        older = await put(store, push(1), {})
        newer = await put(store, push(5), {question(5, 1): PushOrder.NEWER})
        assert await states(store, older, newer) == [RunState.CANCELLED, RunState.WAITING]

    async def test_it_does_not_matter_which_was_planned_first(self, store: JobStore) -> None:
        first = await admitted(store, push(5))
        task = await planning_task(store)
        second = await put(store, push(1), {})
        answers = {question(5, 1): PushOrder.NEWER}
        assert await store.planned(task, [job("true")], RunSpec(), answers) is True
        assert await states(store, first, second) == [RunState.WAITING, RunState.CANCELLED]

    async def test_without_an_order_from_git_the_later_request_is_the_newer_one(
        self, store: JobStore
    ) -> None:
        first = await put(store, push(5), {})
        second = await put(store, push(1), {question(1, 5): None})
        assert await states(store, first, second) == [RunState.CANCELLED, RunState.WAITING]

    async def test_without_answers_nothing_is_asked(self, store: JobStore) -> None:
        first = await put(store, push(5))
        second = await put(store, push(1))
        assert await states(store, first, second) == [RunState.CANCELLED, RunState.WAITING]

    async def test_on_the_default_branch_every_push_is_built_and_nothing_asked(self, store: JobStore) -> None:
        runs = [await put(store, push(number, ref="refs/heads/main"), {}) for number in (5, 1, 3)]
        assert await states(store, *runs) == [RunState.WAITING] * 3

    async def test_a_workflow_of_the_default_branch_may_want_it(self, store: JobStore) -> None:
        run_spec = RunSpec(supersede=True)
        newest = await put(store, push(5, ref="refs/heads/main"), {}, run_spec)
        late = await put(store, push(1, ref="refs/heads/main"), {question(1, 5): PushOrder.OLDER}, run_spec)
        assert await states(store, newest, late) == [RunState.WAITING, RunState.CANCELLED]

    async def test_a_workflow_may_forbid_it(self, store: JobStore) -> None:
        newest = await put(store, push(5), {})
        await ended(store)
        late = await put(store, push(1), {}, RunSpec(supersede=False))
        assert await states(store, newest, late) == [RunState.SUCCEEDED, RunState.WAITING]

    async def test_nothing_is_asked_where_no_run_is_superseded(
        self, store_url: str, clock: ManualClock
    ) -> None:
        async with open_store(store_url, clock=clock, supersede=SupersedeRule.OFF) as store:
            runs = [await put(store, push(number), {}) for number in (5, 1)]
            assert await states(store, *runs) == [RunState.WAITING] * 2

    async def test_a_rerun_of_an_older_push_is_built(self, store: JobStore) -> None:
        older = await put(store, push(1), {})
        newest = await put(store, push(2), {})
        again = await store.rerun(older)
        assert again is not None
        stored = await store.planned(await planning_task(store), [job("true")], RunSpec(), {})
        assert stored is True
        assert await states(store, newest, again.run_id) == [RunState.WAITING] * 2

    async def test_a_change_request_is_asked_about_like_a_branch(self, store: JobStore) -> None:
        change = {"ref": "refs/pull/7/head", "event": "change_request", "change_number": 7}
        newest = await put(store, push(5, **change), {})
        late = await put(store, push(1, **change), {question(1, 5): PushOrder.OLDER})
        assert await states(store, newest, late) == [RunState.WAITING, RunState.CANCELLED]


async def test_runs_that_are_planned_at_once_become_what_each_becomes_alone(store: JobStore) -> None:
    """Two are of one branch, one was taken back, one raises an error."""
    requests = [
        job_request(),
        push(1),
        push(2),
        job_request(),
        push(7, ref="refs/heads/autumn"),
        job_request(),
    ]
    await put(store, push(4, ref="refs/heads/autumn"), {})
    run_ids = [await admitted(store, request) for request in requests]
    tasks = await store.claim_planning(WORKER, 10)
    await store.take_back_planning(WORKER, set(run_ids) - {run_ids[3]})
    twice = [job("true"), job("true")]
    answers = await asyncio.gather(
        *[store.planned(task, twice if task is tasks[-1] else [job("true")], answers={}) for task in tasks],
        return_exceptions=True,
    )
    assert answers[:-1] == [True, True, True, False, question(7, 4)]
    assert isinstance(answers[-1], ValueError)
    assert await states(store, *run_ids) == [
        RunState.WAITING,
        RunState.CANCELLED,
        RunState.WAITING,
        *[RunState.PLANNING] * 3,
    ]
    jobs = [await store.jobs(run_id=run_id, limit=10) for run_id in run_ids]
    assert [len(each) for each in jobs] == [1, 1, 1, 0, 0, 0]
