"""Every store admits each request once, as a run with all that the request says."""

import asyncio

import orjson

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.protocol import (
    Admitted,
    Duplicate,
)
from tests.builders import job_request
from tests.stores import (
    ManualClock,
    OpenStore,
    admitted,
    planning_task,
)


async def test_each_request_becomes_a_run_in_the_order_given(store: JobStore) -> None:
    requests = [job_request() for _ in range(150)]
    admissions = await store.admit(requests)
    assert all(isinstance(admission, Admitted) for admission in admissions)
    ids = [admission.run_id for admission in admissions]
    assert ids == sorted(set(ids))
    for request, run_id in zip(requests, ids, strict=True):
        view = await store.run_of_request(request.request_id)
        assert view is not None
        assert (view.run_id, view.state) == (run_id, RunState.PLANNING)


async def test_nothing_to_admit_is_nothing(store: JobStore) -> None:
    assert list(await store.admit([])) == []


async def test_a_redelivered_request_is_the_same_run(store: JobStore) -> None:
    request = job_request()
    run_id = await admitted(store, request)
    _, repeat = await store.admit([job_request(), request])
    assert repeat == Duplicate(run_id=run_id)
    assert len((await store.runs(limit=10)).runs) == 2


async def test_duplicates_within_one_batch_are_one_run(store: JobStore) -> None:
    request, other = job_request(), job_request()
    first, second, third, fourth = await store.admit([request, request, other, request])
    assert second == fourth == Duplicate(run_id=first.run_id)
    assert isinstance(third, Admitted)


async def test_one_idempotency_key_is_one_run_under_every_request_id(store: JobStore) -> None:
    first, second, third = (job_request(idempotency_key="push 1") for _ in range(3))
    admissions = [*await store.admit([first, second]), *await store.admit([third])]
    run_id = admissions[0].run_id
    assert admissions[1:] == [Duplicate(run_id=run_id)] * 2
    for request in (first, second, third):
        view = await store.run_of_request(request.request_id)
        assert view is not None
        assert (view.run_id, view.request_id) == (run_id, first.request_id)


async def test_a_request_known_as_a_duplicate_stays_one_under_another_key(store: JobStore) -> None:
    run_id = await admitted(store, job_request(idempotency_key="push 1"))
    repeat = job_request(idempotency_key="push 1")
    changed = job_request(request_id=repeat.request_id, idempotency_key="push 2")
    assert await store.admit([repeat]) == [Duplicate(run_id=run_id)]
    assert await store.admit([changed]) == [Duplicate(run_id=run_id)]


async def test_fifty_at_once_from_two_orchestrators_are_one_run(store: JobStore, opened: OpenStore) -> None:
    request = job_request()
    async with opened() as other:
        answers = await asyncio.gather(*[each.admit([request]) for each in (store, other) for _ in range(25)])
    kinds = [type(answer[0]) for answer in answers]
    assert kinds.count(Admitted) == 1
    assert len({answer[0].run_id for answer in answers}) == 1


async def test_fields_from_the_future_reach_the_planner(store: JobStore) -> None:
    body = orjson.dumps({**orjson.loads(job_request().encode()), "later": {"b": [1]}})
    await store.admit([JobRequestV1.decode(body)], [body])
    task = await planning_task(store)
    assert task.request.model_extra == {"later": {"b": [1]}}


async def test_what_readers_see_is_what_was_asked_for(store: JobStore, clock: ManualClock) -> None:
    request = job_request(sender="mira", change_number=7)
    view = await store.run(await admitted(store, request))
    assert view is not None
    assert (view.request_id, view.source, view.repo_url, view.commit_sha, view.ref, view.event) == (
        request.request_id,
        "forgejo",
        request.repo_url,
        request.commit_sha,
        request.ref,
        request.event,
    )
    assert (view.sender, view.change_number, view.created_at) == ("mira", 7, clock.now)
    assert (view.started_at, view.finished_at, view.rerun_of) == (None, None, None)
