"""What every job store keeps; written against the protocol, run on every implementation."""

import asyncio
from dataclasses import replace
from functools import partial

import orjson
import pytest

from solstice_common.messages import JobRequestV1, JobStatusV1, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Outcome, Reason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import (
    LOG_CHUNKS_PER_PURGE,
    Admitted,
    AttemptKey,
    Duplicate,
    OutboxKind,
    OutboxMessage,
    Purged,
)
from solstice_orchestrator.store.views import ChunkKind, LogChunk, LogState
from tests.builders import job, job_request
from tests.stores import (
    CANCELLED,
    CHECKOUT_ERRORED,
    FAILED,
    LEASE,
    RELEASED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    running,
    state_of,
)


@pytest.fixture
def opened(opened: OpenStore) -> OpenStore:
    return partial(opened, public_url="https://ci.example/")


def chunk(sequence: int, data: bytes = b"x") -> LogChunk:
    return LogChunk(sequence=sequence, at=1.5, data=data)


HUGE = int("9" * 400)
"""Beyond every float; a field that we do not know may hold it (RFC 8259, section 6, sets no limit)."""


class TestAdmit:
    async def test_each_request_becomes_a_run_in_the_order_given(self, store: JobStore) -> None:
        requests = [job_request() for _ in range(150)]
        admissions = await store.admit(requests)
        assert all(isinstance(admission, Admitted) for admission in admissions)
        ids = [admission.run_id for admission in admissions]
        assert ids == sorted(set(ids))
        for request, run_id in zip(requests, ids, strict=True):
            view = await store.run_of_request(request.request_id)
            assert view is not None
            assert (view.run_id, view.state) == (run_id, RunState.PLANNING)

    async def test_nothing_to_admit_is_nothing(self, store: JobStore) -> None:
        assert list(await store.admit([])) == []

    async def test_a_redelivered_request_is_the_same_run(self, store: JobStore) -> None:
        request = job_request()
        run_id = await admitted(store, request)
        _, repeat = await store.admit([job_request(), request])
        assert repeat == Duplicate(run_id=run_id)
        assert len((await store.runs(limit=10)).runs) == 2

    async def test_duplicates_within_one_batch_are_one_run(self, store: JobStore) -> None:
        request, other = job_request(), job_request()
        first, second, third, fourth = await store.admit([request, request, other, request])
        assert second == fourth == Duplicate(run_id=first.run_id)
        assert isinstance(third, Admitted)

    async def test_one_idempotency_key_is_one_run_under_every_request_id(self, store: JobStore) -> None:
        first, second, third = (job_request(idempotency_key="push 1") for _ in range(3))
        admissions = [*await store.admit([first, second]), *await store.admit([third])]
        run_id = admissions[0].run_id
        assert admissions[1:] == [Duplicate(run_id=run_id)] * 2
        for request in (first, second, third):
            view = await store.run_of_request(request.request_id)
            assert view is not None
            assert (view.run_id, view.request_id) == (run_id, first.request_id)

    async def test_a_request_known_as_a_duplicate_stays_one_under_another_key(self, store: JobStore) -> None:
        run_id = await admitted(store, job_request(idempotency_key="push 1"))
        repeat = job_request(idempotency_key="push 1")
        changed = job_request(request_id=repeat.request_id, idempotency_key="push 2")
        assert await store.admit([repeat]) == [Duplicate(run_id=run_id)]
        assert await store.admit([changed]) == [Duplicate(run_id=run_id)]

    async def test_fifty_at_once_from_two_orchestrators_are_one_run(
        self, store: JobStore, opened: OpenStore
    ) -> None:
        request = job_request()
        async with opened() as other:
            answers = await asyncio.gather(
                *[each.admit([request]) for each in (store, other) for _ in range(25)]
            )
        kinds = [type(answer[0]) for answer in answers]
        assert kinds.count(Admitted) == 1
        assert len({answer[0].run_id for answer in answers}) == 1

    async def test_fields_from_the_future_reach_whoever_plans(self, store: JobStore) -> None:
        body = orjson.dumps({**orjson.loads(job_request().encode()), "later": {"b": [1]}})
        await store.admit([JobRequestV1.decode(body)], [body])
        task = await planning_task(store)
        assert task.request.model_extra == {"later": {"b": [1]}}

    async def test_what_readers_see_is_what_was_asked_for(self, store: JobStore, clock: ManualClock) -> None:
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


class TestPlanning:
    async def test_oldest_first_and_each_to_one_worker(self, store: JobStore, opened: OpenStore) -> None:
        ids = [await admitted(store) for _ in range(5)]
        async with opened() as other:
            first = await store.claim_planning(WORKER, 2)
            rest = await other.claim_planning("worker-b", 10)
        assert [task.run_id for task in (*first, *rest)] == ids
        assert await store.claim_planning(WORKER, 10) == []

    async def test_what_a_worker_was_given_and_never_heard_of_can_be_given_again(
        self, store: JobStore, opened: OpenStore
    ) -> None:
        """The answer to a claim is lost when the connection breaks as it is committed."""
        known, lost, of_another = [await admitted(store) for _ in range(3)]
        (held,) = await store.claim_planning(WORKER, 1)
        (unheard,) = await store.claim_planning(WORKER, 1)
        async with opened() as other:
            (theirs,) = await other.claim_planning("worker-b", 1)
            assert (held.run_id, unheard.run_id, theirs.run_id) == (known, lost, of_another)
            await store.take_back_planning(WORKER, {held.run_id})
            (again,) = await other.claim_planning("worker-b", 10)
        assert again.run_id == lost
        assert not await store.planned(unheard, ())
        assert await store.planned(held, ())
        assert await store.planned(theirs, ())

    async def test_jobs_without_needs_wait_and_the_others_are_blocked(self, store: JobStore) -> None:
        run_id = await planned(store, job("true", name="build"), job("true", name="ship", needs=("build",)))
        views = await store.jobs(run_id=run_id, limit=10)
        assert [(view.name, view.state, view.needs) for view in views] == [
            ("build", JobState.WAITING, ()),
            ("ship", JobState.BLOCKED, ("build",)),
        ]
        run = await store.run(run_id)
        assert run is not None
        assert run.state is RunState.WAITING

    async def test_a_run_without_jobs_is_skipped(self, store: JobStore) -> None:
        run_id = await admitted(store)
        assert await store.planned(await planning_task(store), ())
        run = await store.run(run_id)
        assert run is not None
        assert run.state is RunState.SKIPPED

    @pytest.mark.parametrize("reason", [Reason.INVALID_WORKFLOW, Reason.COMMIT_NOT_FOUND, Reason.NOT_TRUSTED])
    async def test_a_request_that_cannot_become_jobs_ends_its_run(
        self, store: JobStore, reason: Reason
    ) -> None:
        run_id = await admitted(store)
        assert await store.not_planned(await planning_task(store), reason, "line 3: no such thing")
        run = await store.run(run_id)
        assert run is not None
        assert (run.state, run.detail) == (RunState.ERRORED, "line 3: no such thing")
        last = (await outbox_statuses(store))[-1]
        assert (last.state, last.reason) == ("errored", reason.value)
        assert [row.kind for row in await store.outbox(10)] == [OutboxKind.STATUS] * 2

    async def test_a_wrong_world_is_tried_again_and_then_becomes_a_dead_letter(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        request = job_request()
        run_id = await admitted(store, request)
        for _ in range(MAX_ATTEMPTS):
            clock.forward(1000)
            assert await store.not_planned(
                await planning_task(store), Reason.CHECKOUT_FAILED, "no route to host"
            )
        clock.forward(1000)
        assert await store.claim_planning(WORKER, 1) == []
        run = await store.run(run_id)
        assert run is not None
        assert run.state is RunState.ERRORED
        *_, dead_letter = await store.outbox(100)
        assert (dead_letter.kind, dead_letter.request_id) == (OutboxKind.DEAD_LETTER, request.request_id)
        assert dead_letter.body == request.encode()
        assert dead_letter.headers["x-solstice-reason"] == "checkout_failed"
        assert "no route to host" in dead_letter.headers["x-solstice-detail"]

    async def test_backoff_keeps_a_run_from_being_planned_too_soon(
        self, store_url: str, clock: ManualClock
    ) -> None:
        async with open_store(store_url, clock=clock, retry_base_seconds=1e6) as store:
            await admitted(store)
            await store.not_planned(await planning_task(store), Reason.CHECKOUT_FAILED, "")
            assert await store.claim_planning(WORKER, 1) == []
            clock.forward(300)
            assert len(await store.claim_planning(WORKER, 1)) == 1

    async def test_a_sick_machine_spends_no_try_of_a_run(self, store: JobStore) -> None:
        await admitted(store)
        for _ in range(MAX_ATTEMPTS + 2):
            assert await store.not_planned(await planning_task(store), Reason.MACHINE_FAILED, "disk full")
        assert await store.planned(await planning_task(store), [job("true")])

    async def test_a_released_plan_is_there_again_at_once_and_does_not_count(self, store: JobStore) -> None:
        await admitted(store)
        for _ in range(MAX_ATTEMPTS + 2):
            assert await store.not_planned(await planning_task(store), Reason.RELEASED, "")
        assert len(await store.claim_planning(WORKER, 1)) == 1

    async def test_a_dead_planner_is_replaced_and_fenced(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await admitted(store)
        late = await planning_task(store)
        clock.forward(LEASE + 1)
        await store.rescue()
        clock.forward(LEASE)
        task = await planning_task(store, "worker-b")
        assert (task.run_id, task.attempt) == (run_id, late.attempt + 1)
        assert not await store.planned(late, [job("true")])
        assert not await store.not_planned(late, Reason.INVALID_WORKFLOW, "")
        assert await store.planned(task, [job("true")])
        assert not await store.planned(task, [job("true")])
        assert len(await store.jobs(run_id=run_id, limit=10)) == 1

    async def test_a_living_planner_keeps_its_run(self, store: JobStore, clock: ManualClock) -> None:
        await admitted(store)
        task = await planning_task(store)
        for _ in range(4):
            clock.forward(LEASE / 2)
            await store.renew(WORKER, [])
            await store.rescue()
        assert await store.planned(task, [job("true")])


class TestClaim:
    async def test_most_urgent_class_first_then_the_oldest(self, store: JobStore) -> None:
        order = [Priority.LOW, Priority.DEFAULT, Priority.CRITICAL, Priority.DEFAULT, Priority.HIGH]
        for number, priority in enumerate(order):
            await planned(store, job("true", name=str(number), priority=priority))
        assert [claim.spec.name for claim in await claimed(store)] == ["2", "4", "1", "3", "0"]

    async def test_no_more_than_the_free_slots_of_a_label(self, store: JobStore) -> None:
        for label in ("linux", "linux", "linux", "illumos", "plan9"):
            await planned(store, job("true", runs_on=label))
        claims = await claimed(store, free={"linux": 2, "illumos": 1, "plan9": 0})
        assert sorted(claim.spec.runs_on for claim in claims) == ["illumos", "linux", "linux"]
        assert await claimed(store, free={}) == ()

    async def test_no_more_than_the_limit(self, store: JobStore) -> None:
        for _ in range(4):
            await planned(store)
        assert len(await claimed(store, limit=3)) == 3
        assert len(await claimed(store, limit=0)) == 0
        assert len(await claimed(store, limit=3)) == 1

    async def test_a_claim_tells_all_there_is_to_run(self, store: JobStore, clock: ManualClock) -> None:
        spec = job("make", "make test", name="test", env={"A": "1"}, timeout_seconds=12.5)
        request = job_request()
        run_id = await planned(store, spec, request=request)
        clock.forward(3)
        (claim,) = await claimed(store)
        assert (claim.run_id, claim.spec, claim.request) == (run_id, spec, request)
        assert (claim.key.number, claim.lease_until) == (1, clock.now + LEASE)
        assert claim.waiting_since == clock.now - 3
        (view,) = await store.attempts(claim.key.job_id)
        assert (view.number, view.worker_id, view.state, view.started_at) == (
            1,
            WORKER,
            JobState.RUNNING,
            clock.now,
        )

    async def test_two_orchestrators_never_get_the_same_job(self, store: JobStore, opened: OpenStore) -> None:
        await planned(store, *[job("true", name=str(number)) for number in range(40)])
        async with opened() as other:
            rounds = await asyncio.gather(
                *[each.claim(WORKER, {"linux": 3}, 3) for _ in range(10) for each in (store, other)]
            )
        keys = [claim.key for claims in rounds for claim in claims]
        assert len(keys) == len(set(keys)) == 40

    async def test_ten_jobs_and_three_workers_each_job_has_one(
        self, store: JobStore, opened: OpenStore
    ) -> None:
        await planned(store, *[job("true", name=str(number)) for number in range(4)])
        for _ in range(6):
            await planned(store)
        async with opened() as second, opened() as third:
            workers = {"worker-a": store, "worker-b": second, "worker-c": third}
            rounds = await asyncio.gather(
                *[each.claim(name, {"linux": 4}, 4) for _ in range(4) for name, each in workers.items()]
            )
            # Whoever came while a run was being begun looks again.
            rounds.append(await store.claim("worker-a", {"linux": 10}, 10))
        keys = [claim.key for claims in rounds for claim in claims]
        assert len(keys) == len(set(keys)) == 10
        holders = [(await store.attempts(key.job_id))[0].worker_id for key in keys]
        assert set(holders) <= workers.keys()


class TestLeases:
    async def test_renewing_prolongs(self, store: JobStore, clock: ManualClock) -> None:
        claim = await running(store)
        for _ in range(5):
            clock.forward(LEASE / 2)
            renewal = await store.renew(WORKER, [claim.key])
            assert (renewal.lost, renewal.cancelled) == (frozenset(), frozenset())
            assert await store.rescue() == []

    @pytest.mark.parametrize(
        ("heartbeat", "reason"),
        [(True, Reason.LEASE_EXPIRED), (False, Reason.AGENT_LOST)],
        ids=["worker alive", "worker gone"],
    )
    async def test_a_lease_that_ran_out_is_ended_for_what_it_was(
        self, store: JobStore, clock: ManualClock, heartbeat: bool, reason: Reason
    ) -> None:
        claim = await running(store)
        clock.forward(LEASE - 1)
        if heartbeat:
            await store.renew(WORKER, [])
        assert await store.rescue() == []
        clock.forward(1)
        assert await store.rescue() == [claim.key]
        assert await store.rescue() == []
        assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, reason)
        (view,) = await store.attempts(claim.key.job_id)
        assert (view.reason, view.finished_at) == (reason, clock.now)

    async def test_a_late_holder_changes_nothing_and_is_told(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        late = await running(store)
        clock.forward(LEASE)
        await store.rescue()
        clock.forward(LEASE)
        (now,) = await claimed(store, worker="worker-b")
        before = [status.encode() for status in await outbox_statuses(store)]
        assert now.key == AttemptKey(job_id=late.key.job_id, number=2)
        assert not await store.append_log(late.key, [chunk(1)])
        assert not await store.finish(late.key, SUCCEEDED)
        assert (await store.renew(WORKER, [late.key])).lost == {late.key}
        assert [status.encode() for status in await outbox_statuses(store)] == before
        page = await store.log(late.key.job_id)
        assert page is not None
        assert (page.attempt, list(page.chunks)) == (2, [])
        assert await store.finish(now.key, SUCCEEDED)

    async def test_an_old_attempt_is_lost_even_when_the_new_one_is_ours_too(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        old = await running(store)
        clock.forward(LEASE)
        await store.rescue()
        clock.forward(LEASE)
        (new,) = await claimed(store)
        assert (await store.renew(WORKER, [old.key, new.key])).lost == {old.key}

    async def test_what_one_ended_oneself_is_not_lost(self, store: JobStore) -> None:
        claim = await running(store)
        await store.finish(claim.key, SUCCEEDED)
        assert (await store.renew(WORKER, [claim.key])).lost == frozenset()

    async def test_what_never_was_is_lost(self, store: JobStore) -> None:
        ghost = AttemptKey(job_id="00000000-0000-7000-8000-000000000000", number=1)
        assert (await store.renew(WORKER, [ghost])).lost == {ghost}


class TestFinish:
    @pytest.mark.parametrize(
        ("outcome", "run_state"),
        [
            (SUCCEEDED, RunState.SUCCEEDED),
            (FAILED, RunState.FAILED),
            (CANCELLED, RunState.CANCELLED),
            (Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT), RunState.TIMED_OUT),
            (Outcome(state=JobState.ERRORED, reason=Reason.COMMIT_NOT_FOUND), RunState.ERRORED),
        ],
        ids=lambda value: str(getattr(value, "state", value)),
    )
    async def test_the_run_ends_with_its_only_job(
        self, store: JobStore, clock: ManualClock, outcome: Outcome, run_state: RunState
    ) -> None:
        claim = await running(store)
        clock.forward(9)
        assert await store.finish(claim.key, outcome)
        view, run = await store.job(claim.key.job_id), await store.run(claim.run_id)
        assert view is not None
        assert run is not None
        assert (view.state, view.reason, view.exit_code, view.step) == (
            outcome.state,
            outcome.reason,
            outcome.exit_code,
            outcome.step,
        )
        assert view.finished_at == run.finished_at == clock.now
        assert view.started_at == run.started_at == clock.now - 9
        assert run.state is run_state

    async def test_it_is_under_way_before_anybody_awaits_it(self, store: JobStore) -> None:
        claim = await running(store)
        async with asyncio.timeout(30), store.changes() as changed:
            recorded = store.finish(claim.key, SUCCEEDED)
            while (run := await store.run(claim.run_id)) is None or run.state is not RunState.SUCCEEDED:
                await changed.wait()
                changed.clear()
        assert await recorded

    async def test_repeating_it_is_harmless(self, store: JobStore) -> None:
        claim = await running(store)
        assert await store.finish(claim.key, FAILED)
        before = len(await outbox_statuses(store))
        assert await store.finish(claim.key, FAILED)
        assert not await store.finish(claim.key, SUCCEEDED)
        assert len(await outbox_statuses(store)) == before

    async def test_success_lets_go_what_needed_it(self, store: JobStore) -> None:
        claim = await running(
            store,
            job("true", name="build"),
            job("true", name="test", needs=("build",)),
            job("true", name="ship", needs=("build", "test")),
        )
        await store.finish(claim.key, SUCCEEDED)
        views = await store.jobs(run_id=claim.run_id, limit=9)
        assert [view.state for view in views] == [JobState.SUCCEEDED, JobState.WAITING, JobState.BLOCKED]

    async def test_failure_skips_all_that_needed_it(self, store: JobStore) -> None:
        claim = await running(
            store,
            job("true", name="build"),
            job("true", name="test", needs=("build",)),
            job("true", name="ship", needs=("test",)),
        )
        await store.finish(claim.key, FAILED)
        views = await store.jobs(run_id=claim.run_id, limit=9)
        assert [(view.state, view.reason) for view in views[1:]] == [
            (JobState.SKIPPED, Reason.NEEDS_FAILED)
        ] * 2
        run = await store.run(claim.run_id)
        assert run is not None
        assert run.state is RunState.FAILED

    async def test_a_wrong_world_is_tried_again_and_then_becomes_a_dead_letter(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        request = job_request()
        run_id = await planned(store, request=request)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            clock.forward(1000)
            (claim,) = await claimed(store)
            assert claim.key.number == attempt
            assert await store.finish(claim.key, CHECKOUT_ERRORED)
            expected = JobState.ERRORED if attempt == MAX_ATTEMPTS else JobState.BACKOFF
            assert await state_of(store, claim.key.job_id) == (expected, Reason.CHECKOUT_FAILED)
        clock.forward(1000)
        assert await claimed(store) == ()
        run = await store.run(run_id)
        assert run is not None
        assert run.state is RunState.ERRORED
        (dead_letter,) = [row for row in await store.outbox(100) if row.kind is OutboxKind.DEAD_LETTER]
        assert (dead_letter.request_id, dead_letter.body) == (request.request_id, request.encode())
        assert dead_letter.headers["x-solstice-reason"] == "checkout_failed"
        assert dead_letter.headers["x-solstice-history"].count("no route to host") == MAX_ATTEMPTS

    async def test_a_sick_machine_spends_no_try_of_a_job(self, store: JobStore, clock: ManualClock) -> None:
        sick = Outcome(state=JobState.ERRORED, reason=Reason.MACHINE_FAILED, detail="disk full")
        await planned(store)
        for attempt in range(1, MAX_ATTEMPTS + 3):
            clock.forward(1000)
            (claim,) = await claimed(store, worker=f"worker-{attempt}")
            assert await store.finish(claim.key, sick)
            assert await state_of(store, claim.key.job_id) == (JobState.BACKOFF, Reason.MACHINE_FAILED)
        clock.forward(1000)
        (claim,) = await claimed(store, worker="well")
        assert await store.finish(claim.key, SUCCEEDED)

    async def test_backoff_ends_at_its_time(self, store_url: str, clock: ManualClock) -> None:
        async with open_store(store_url, clock=clock, retry_base_seconds=1e6) as store:
            claim = await running(store)
            await store.finish(claim.key, CHECKOUT_ERRORED)
            view = await store.job(claim.key.job_id)
            assert view is not None
            assert view.retry_at is not None
            assert clock.now < view.retry_at <= clock.now + 300
            assert await claimed(store) == ()
            clock.now = view.retry_at
            assert len(await claimed(store)) == 1

    async def test_a_released_job_waits_again_and_nothing_is_counted(self, store: JobStore) -> None:
        await planned(store)
        for attempt in range(1, MAX_ATTEMPTS + 3):
            (claim,) = await claimed(store)
            assert claim.key.number == attempt
            assert await store.finish(claim.key, RELEASED)
        assert await state_of(store, claim.key.job_id) == (JobState.WAITING, Reason.RELEASED)

    async def test_a_retried_job_keeps_its_place_in_the_queue(self, store: JobStore) -> None:
        first = await running(store, job("true", name="old"))
        await planned(store, job("true", name="young"))
        await store.finish(first.key, RELEASED)
        assert [claim.spec.name for claim in await claimed(store)] == ["old", "young"]


class TestLog:
    async def test_chunks_are_kept_once_and_read_in_order(self, store: JobStore) -> None:
        key = (await running(store)).key
        assert await store.append_log(key, [chunk(1, b"a"), chunk(2, b"b")])
        assert await store.append_log(key, [chunk(2, b"again"), chunk(3, b"\xff\x00")])
        page = await store.log(key.job_id)
        assert page is not None
        assert [(each.sequence, each.data) for each in page.chunks] == [
            (1, b"a"),
            (2, b"b"),
            (3, b"\xff\x00"),
        ]
        assert page.state is LogState.OPEN

    async def test_marks_stay_marks(self, store: JobStore) -> None:
        key = (await running(store)).key
        mark = replace(chunk(2, b"$ test\n"), kind=ChunkKind.MARK)
        assert await store.append_log(key, [chunk(1, b"$ test\n"), mark])
        page = await store.log(key.job_id)
        assert page is not None
        assert [each.kind for each in page.chunks] == [ChunkKind.OUTPUT, ChunkKind.MARK]

    async def test_closed_is_said_with_the_last_chunk_and_not_before(self, store: JobStore) -> None:
        key = (await running(store)).key
        await store.append_log(key, [chunk(number) for number in range(1, 5)])
        await store.finish(key, SUCCEEDED)
        first = await store.log(key.job_id, limit=3)
        rest = await store.log(key.job_id, after=3, limit=3)
        beyond = await store.log(key.job_id, after=4)
        assert first is not None
        assert rest is not None
        assert beyond is not None
        assert (len(first.chunks), first.state) == (3, LogState.OPEN)
        assert ([each.sequence for each in rest.chunks], rest.state) == ([4], LogState.CLOSED)
        assert (list(beyond.chunks), beyond.state) == ([], LogState.CLOSED)

    async def test_every_attempt_has_its_own(self, store: JobStore) -> None:
        first = (await running(store)).key
        await store.append_log(first, [chunk(1, b"one")])
        await store.finish(first, RELEASED)
        ((second),) = await claimed(store)
        await store.append_log(second.key, [chunk(1, b"two")])
        old, new = await store.log(first.job_id, attempt=1), await store.log(first.job_id)
        assert old is not None
        assert new is not None
        assert (old.chunks[0].data, old.state) == (b"one", LogState.CLOSED)
        assert (new.attempt, new.chunks[0].data, new.state) == (2, b"two", LogState.OPEN)

    async def test_a_job_that_never_ran_has_an_empty_one(self, store: JobStore) -> None:
        run_id = await planned(store)
        (view,) = await store.jobs(run_id=run_id, limit=1)
        before = await store.log(view.job_id)
        await store.cancel_job(view.job_id)
        after = await store.log(view.job_id)
        assert before is not None
        assert after is not None
        assert (before.state, after.state) == (LogState.OPEN, LogState.CLOSED)
        assert await store.log("no such job") is None


class TestSteering:
    async def test_a_waiting_job_is_cancelled_at_once(self, store: JobStore) -> None:
        run_id = await planned(store)
        (view,) = await store.jobs(run_id=run_id, limit=1)
        after = await store.cancel_job(view.job_id)
        assert after is not None
        assert (after.state, after.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
        run = await store.run(run_id)
        assert run is not None
        assert run.state is RunState.CANCELLED
        assert await claimed(store) == ()

    async def test_the_holder_of_a_running_job_is_told(self, store: JobStore) -> None:
        claim = await running(store)
        view = await store.cancel_job(claim.key.job_id)
        assert view is not None
        assert view.state is JobState.RUNNING
        assert (await store.renew(WORKER, [claim.key])).cancelled == {claim.key}
        assert await store.finish(claim.key, CANCELLED)
        assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)

    @pytest.mark.parametrize("end", [RELEASED, CHECKOUT_ERRORED], ids=["released", "world wrong"])
    async def test_a_cancelled_job_does_not_run_again(self, store: JobStore, end: Outcome) -> None:
        claim = await running(store)
        await store.cancel_job(claim.key.job_id)
        await store.finish(claim.key, end)
        assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)

    async def test_a_cancelled_job_of_a_dead_worker_is_cancelled(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        claim = await running(store)
        await store.cancel_run(claim.run_id)
        clock.forward(LEASE)
        await store.rescue()
        assert await state_of(store, claim.key.job_id) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)

    async def test_cancelling_a_run_ends_what_waits_and_asks_what_runs(self, store: JobStore) -> None:
        await planned(
            store,
            job("true", name="a"),
            job("true", name="b"),
            job("true", name="c", needs=("a",)),
        )
        (claim,) = await claimed(store, limit=1)
        run = await store.cancel_run(claim.run_id)
        assert run is not None
        assert run.state is RunState.RUNNING
        views = await store.jobs(run_id=claim.run_id, limit=9)
        assert [view.state for view in views] == [JobState.RUNNING, JobState.CANCELLED, JobState.CANCELLED]
        await store.finish(claim.key, CANCELLED)
        run = await store.run(claim.run_id)
        assert run is not None
        assert run.state is RunState.CANCELLED

    async def test_a_run_that_is_planned_is_cancelled_and_its_planner_fenced(self, store: JobStore) -> None:
        run_id = await admitted(store)
        task = await planning_task(store)
        run = await store.cancel_run(run_id)
        assert run is not None
        assert run.state is RunState.CANCELLED
        assert not await store.planned(task, [job("true")])

    async def test_what_has_ended_stays_as_it_is(self, store: JobStore) -> None:
        claim = await running(store)
        await store.finish(claim.key, FAILED)
        before = len(await outbox_statuses(store))
        view, run = await store.cancel_job(claim.key.job_id), await store.cancel_run(claim.run_id)
        assert view is not None
        assert run is not None
        assert (view.state, run.state) == (JobState.FAILED, RunState.FAILED)
        assert len(await outbox_statuses(store)) == before

    async def test_whatever_stands_in_unknown_fields_a_run_lives_and_is_rerun(self, store: JobStore) -> None:
        request = job_request(count=2**70 + 1, more={"huge": HUGE})
        await planned(store, request=request)
        (claim,) = await claimed(store)
        assert await store.finish(claim.key, SUCCEEDED)
        assert (await store.runs(limit=1)).runs[0].state is RunState.SUCCEEDED
        assert await store.rerun(claim.run_id) is not None
        again = (await planning_task(store)).request
        assert again.model_extra == request.model_extra

    async def test_a_rerun_is_a_new_run_of_the_same_request(self, store: JobStore) -> None:
        request = job_request(idempotency_key="push 1", later="x")
        run_id = await admitted(store, request)
        again, once_more = await store.rerun(run_id), await store.rerun(run_id)
        assert again is not None
        assert once_more is not None
        assert len({run_id, again.run_id, once_more.run_id}) == 3
        assert (again.rerun_of, again.state, again.commit_sha) == (
            run_id,
            RunState.PLANNING,
            request.commit_sha,
        )
        tasks = await store.claim_planning(WORKER, 9)
        copy = tasks[1].request
        assert copy.request_id == again.request_id != request.request_id
        assert (copy.idempotency_key, copy.model_extra) == (None, {"later": "x"})

    async def test_what_is_not_there_is_none(self, store: JobStore) -> None:
        assert await store.cancel_job("x") is None
        assert await store.cancel_run("x") is None
        assert await store.rerun("x") is None
        assert await store.run("x") is None
        assert await store.job("x") is None
        assert await store.run_of_request("x") is None


class TestOutbox:
    async def test_every_transition_is_told_once_in_order(self, store: JobStore) -> None:
        claim = await running(store, job("true", name="build"), job("true", name="ship", needs=("build",)))
        await store.finish(claim.key, FAILED)
        statuses = await outbox_statuses(store)
        assert [(status.context, status.state, status.reason) for status in statuses] == [
            ("solstice", "planning", None),
            ("solstice", "waiting", None),
            ("solstice/build", "waiting", "planned"),
            ("solstice/ship", "blocked", "planned"),
            ("solstice/build", "running", "claimed"),
            ("solstice", "running", None),
            ("solstice/build", "failed", "step_failed"),
            ("solstice/ship", "skipped", "needs_failed"),
            ("solstice", "failed", None),
        ]
        for context in {status.context for status in statuses}:
            sequences = [status.sequence for status in statuses if status.context == context]
            assert sequences == sorted(set(sequences))
        assert len({status.status_id for status in statuses}) == 9

    async def test_a_status_is_canonical_and_says_all_it_can(self, store: JobStore) -> None:
        request = job_request(delivery_id="d-1", source_name="main", change_number=4)
        run_id = await planned(store, request=request)
        (claim,) = await claimed(store)
        await store.finish(claim.key, FAILED)
        rows = await store.outbox(100)
        for row in rows:
            assert JobStatusV1.decode(row.body).encode() == row.body
            assert row.request_id == request.request_id
        status = JobStatusV1.decode(rows[-2].body)
        assert (status.run_id, status.job_id, status.job_name) == (run_id, claim.key.job_id, "test")
        assert (status.attempt, status.exit_code) == (1, 3)
        assert (status.delivery_id, status.source_name, status.change_number, status.ref) == (
            "d-1",
            "main",
            4,
            "refs/heads/main",
        )
        assert status.target_url == f"https://ci.example/jobs/{claim.key.job_id}"
        assert status.description == "Failed: step 'step 1' ended with exit code 3"
        run = JobStatusV1.decode(rows[-1].body)
        assert run.target_url == f"https://ci.example/runs/{run_id}"

    async def test_confirmed_rows_are_gone_and_the_rest_stays(self, store: JobStore) -> None:
        for _ in range(3):
            await admitted(store)
        first, second, third = await store.outbox(10)
        await store.published([first.number, third.number])
        await store.published([first.number])
        assert await store.outbox(10) == [second]
        await store.published([second.number])
        assert await store.outbox(10) == ()

    async def test_one_publisher_at_a_time(
        self, store: JobStore, opened: OpenStore, clock: ManualClock
    ) -> None:
        await admitted(store)
        (row,) = await store.outbox(10)
        async with opened() as other:
            assert await other.outbox(10) == ()
            clock.forward(LEASE)
            assert await other.outbox(10) == [row]
            assert await store.outbox(10) == ()
            await other.published([row.number])
            await admitted(store)
            assert len(await store.outbox(10)) == 1

    async def test_what_was_told_together_comes_in_order_and_within_the_limit(self, store: JobStore) -> None:
        requests = [job_request() for _ in range(150)]
        await store.admit(requests)
        await running(store)
        seen: list[OutboxMessage] = []
        while group := await store.outbox(40):
            assert len(group) <= 40
            seen += group
            await store.published([each.number for each in group])
        assert [each.request_id for each in seen[:150]] == [request.request_id for request in requests]
        assert [JobStatusV1.decode(each.body).state for each in seen[150:]] == [
            "planning",
            "waiting",
            "waiting",
            "running",
            "running",
        ]
        numbers = [each.number for each in seen]
        assert numbers == sorted(set(numbers))

    async def test_what_is_not_confirmed_stays_as_it_was_without_what_is(self, store: JobStore) -> None:
        await store.admit([job_request() for _ in range(9)])
        before = list(await store.outbox(100))
        confirmed = [before[2], before[5]]
        for _ in range(2):
            await store.published([each.number for each in confirmed])
            assert await store.outbox(100) == [each for each in before if each not in confirmed]
        # A limit that is smaller than what was told together.
        assert await store.outbox(3) == [before[0], before[1], before[3]]
        await store.published([each.number for each in before])
        assert await store.outbox(100) == ()

    async def test_publishers_that_overlap_forget_what_each_of_them_confirmed(
        self, store: JobStore, opened: OpenStore, clock: ManualClock
    ) -> None:
        await store.admit([job_request() for _ in range(6)])
        first = list(await store.outbox(10))
        async with opened() as other:
            clock.forward(LEASE)
            assert await other.outbox(10) == first
            await store.published([each.number for each in first[:2]])
            await other.published([each.number for each in first[1:4]])
            assert await other.outbox(10) == first[4:]

    async def test_a_dead_letter_keeps_its_place_among_the_statuses(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        await planned(store, job("true", name="a"))
        for _ in range(MAX_ATTEMPTS):
            clock.forward(3600.0)
            await store.rescue()
            (claim,) = await claimed(store)
            await store.published([each.number for each in await store.outbox(100)])
            await store.finish(claim.key, CHECKOUT_ERRORED)
        await store.admit([job_request(), job_request()])
        kinds = [each.kind for each in await store.outbox(100)]
        dead_letter = kinds.index(OutboxKind.DEAD_LETTER)
        assert kinds[:dead_letter] == kinds[dead_letter + 1 :] == [OutboxKind.STATUS] * 2


class TestReaders:
    async def test_pages_of_runs_are_whole_and_newest_first(self, store: JobStore) -> None:
        ids = [admission.run_id for admission in await store.admit([job_request() for _ in range(7)])]
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(4):
            page = await store.runs(limit=2, after=cursor)
            seen += [run.run_id for run in page.runs]
            cursor = page.next
        assert cursor is None
        assert seen == ids[::-1]

    async def test_runs_are_found_by_repository_and_state(self, store: JobStore) -> None:
        await planned(store, request=job_request(repo_full_name="lantern/pier"))
        await admitted(store)
        pier = await store.runs(limit=9, repository="lantern/pier")
        assert [run.repo_full_name for run in pier.runs] == ["lantern/pier"]
        waiting = await store.runs(limit=9, state=RunState.WAITING)
        assert [run.run_id for run in waiting.runs] == [pier.runs[0].run_id]
        assert (await store.runs(limit=9, repository="lantern/pier", state=RunState.PLANNING)).runs == []

    async def test_jobs_are_found_by_state_newest_first(self, store: JobStore) -> None:
        for name in ("one", "two", "three"):
            await planned(store, job("true", name=name))
        (claim,) = await claimed(store, limit=1)
        await store.finish(claim.key, SUCCEEDED)
        waiting = await store.jobs(state=JobState.WAITING, limit=9)
        assert [view.name for view in waiting] == ["three", "two"]
        ended = await store.jobs(state=JobState.SUCCEEDED, limit=9)
        assert [view.name for view in ended] == ["one"]
        assert [view.name for view in await store.jobs(limit=2)] == ["three", "two"]

    async def test_unfinished_jobs_are_counted_by_state_and_label(self, store: JobStore) -> None:
        await planned(
            store,
            job("true", name="a"),
            job("true", name="b", runs_on="illumos"),
            job("true", name="c", needs=("a",)),
        )
        await claimed(store)
        assert await store.counts() == {
            (JobState.RUNNING, "linux"): 1,
            (JobState.WAITING, "illumos"): 1,
            (JobState.BLOCKED, "linux"): 1,
        }

    async def test_attempts_are_listed_oldest_first(self, store: JobStore) -> None:
        claim = await running(store)
        await store.finish(claim.key, RELEASED)
        await claimed(store, worker="worker-b")
        views = await store.attempts(claim.key.job_id)
        assert [(view.number, view.worker_id, view.reason) for view in views] == [
            (1, WORKER, Reason.RELEASED),
            (2, "worker-b", Reason.CLAIMED),
        ]

    async def test_changes_wake_every_orchestrator(self, store: JobStore, opened: OpenStore) -> None:
        async with opened() as other, store.changes() as here, other.changes() as there:
            await admitted(store)
            async with asyncio.timeout(10):
                await here.wait()
                await there.wait()

    async def test_what_was_stored_is_there_after_a_restart(self, opened: OpenStore) -> None:
        async with opened() as store:
            claim = await running(store)
            await store.append_log(claim.key, [chunk(1, b"kept")])
        async with opened() as store:
            page = await store.log(claim.key.job_id)
            assert page is not None
            assert page.chunks[0].data == b"kept"
            assert await store.finish(claim.key, SUCCEEDED)


class TestPurge:
    """What is old and finished goes, with everything that belongs to it; nothing else does."""

    DAY = 86_400.0

    async def finished(self, store: JobStore, request: JobRequestV1 | None = None) -> str:
        """A run that has ended, with a log."""
        run_id = await planned(
            store, job("true", name="build"), job("true", name="test", needs=("build",)), request=request
        )
        for _ in range(2):
            (claim,) = await claimed(store)
            assert await store.append_log(claim.key, [chunk(1), chunk(2)])
            assert await store.finish(claim.key, SUCCEEDED)
        return run_id

    async def purged(self, store: JobStore, older_than_seconds: float, limit: int = 100) -> int:
        runs, more = 0, True
        while more:
            step = await store.purge(older_than_seconds, limit)
            assert step.runs <= limit
            runs, more = runs + step.runs, step.more
        return runs

    async def test_a_run_that_ended_long_enough_ago_is_gone_with_all_that_was_its(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        request = job_request()
        run_id = await self.finished(store, request)
        jobs = await store.jobs(run_id=run_id, limit=10)
        clock.forward(2 * self.DAY)
        assert await store.purgeable(self.DAY) == 1
        assert await self.purged(store, self.DAY) == 1
        assert await store.purgeable(self.DAY) == 0
        assert await store.run(run_id) is None
        assert await store.run_of_request(request.request_id) is None
        assert (await store.runs(limit=10)).runs == []
        assert await store.jobs(limit=10) == []
        for view in jobs:
            assert await store.job(view.job_id) is None
            assert await store.attempts(view.job_id) == []
            assert await store.log(view.job_id) is None

    async def test_what_is_younger_or_not_finished_stays(self, store: JobStore, clock: ManualClock) -> None:
        waits = await planned(store, job("true", runs_on="nowhere"))
        ends_late = await planned(store, job("true"))
        (claim,) = await claimed(store)
        planning = await admitted(store)
        clock.forward(2 * self.DAY)
        assert await store.finish(claim.key, SUCCEEDED)
        young = await self.finished(store)
        assert await store.purgeable(self.DAY) == 0
        assert await self.purged(store, self.DAY) == 0
        assert {run.run_id for run in (await store.runs(limit=10)).runs} == {
            waits,
            ends_late,
            planning,
            young,
        }

    async def test_it_goes_in_small_steps_the_oldest_first(self, store: JobStore, clock: ManualClock) -> None:
        runs = [await self.finished(store) for _ in range(5)]
        clock.forward(2 * self.DAY)
        step = await store.purge(self.DAY, 2)
        assert (step.runs, step.more) == (2, True)
        assert [run.run_id for run in (await store.runs(limit=10)).runs] == runs[:1:-1]
        assert await self.purged(store, self.DAY, 2) == 3

    async def test_a_long_log_goes_in_steps_of_its_own(self, store: JobStore, clock: ManualClock) -> None:
        claim = await running(store)
        for start in range(1, 2 * LOG_CHUNKS_PER_PURGE + 1, 500):
            assert await store.append_log(claim.key, [chunk(start + one) for one in range(500)])
        await store.finish(claim.key, SUCCEEDED)
        clock.forward(2 * self.DAY)
        steps: list[Purged] = []
        while not steps or steps[-1].more:
            steps.append(await store.purge(self.DAY, 10))
        assert [step.runs for step in steps] == [0, 0, 1]

    async def test_what_is_still_to_be_told_is_told(self, store: JobStore, clock: ManualClock) -> None:
        await self.finished(store)
        clock.forward(2 * self.DAY)
        before = [row.number for row in await store.outbox(1000)]
        assert await self.purged(store, self.DAY) == 1
        assert before
        assert [row.number for row in await store.outbox(1000)] == before

    async def test_a_request_that_was_forgotten_is_a_new_run_when_it_comes_again(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        first = job_request(idempotency_key="push-1")
        same_push = job_request(idempotency_key="push-1")
        run_id = await self.finished(store, first)
        assert await store.admit([same_push]) == [Duplicate(run_id=run_id)]
        clock.forward(2 * self.DAY)
        assert await store.admit([first]) == [Duplicate(run_id=run_id)]
        assert await self.purged(store, self.DAY) == 1
        (again,) = await store.admit([same_push])
        assert isinstance(again, Admitted)
        assert await store.admit([first]) == [Duplicate(run_id=again.run_id)]

    async def test_a_rerun_outlives_the_run_it_repeats(self, store: JobStore, clock: ManualClock) -> None:
        run_id = await self.finished(store)
        clock.forward(2 * self.DAY)
        again = await store.rerun(run_id)
        assert again is not None
        assert await self.purged(store, self.DAY) == 1
        view = await store.run(again.run_id)
        assert view is not None
        assert view.rerun_of == run_id

    async def test_two_that_purge_at_once_remove_each_run_once(
        self, store: JobStore, opened: OpenStore, clock: ManualClock
    ) -> None:
        for _ in range(12):
            await self.finished(store)
        clock.forward(2 * self.DAY)
        async with opened() as other:
            removed = await asyncio.gather(
                self.purged(store, self.DAY, 1),
                self.purged(other, self.DAY, 1),
                self.purged(store, self.DAY, 3),
            )
        assert sum(removed) == 12
