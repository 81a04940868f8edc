"""What every store and inbox promises about spans that no collector has taken yet."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from solstice_common.tracing.run_trace import run_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.traced_requests import PublishTimes, StoredTimes
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.traced_runs import READ_STEPS, BegunStep
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from tests.builders import job, job_request
from tests.inboxes import NOON, REQUEST, delivery
from tests.stores import (
    CHECKOUT_ERRORED,
    SUCCEEDED,
    ManualClock,
    OpenStore,
    admitted,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
)

ALL = Sampler(ratio=1.0, follows_parent=True)
TRACED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNTRACED = f"{TRACED[:-2]}00"
LEASED_SECONDS = 15.0
DAY = 86_400.0


@pytest.fixture
async def tracing(opened: OpenStore) -> AsyncIterator[JobStore]:
    """A store that traces every run."""
    async with opened(sampler=ALL) as store:
        yield store


async def ended(store: JobStore, traceparent: str | None = None) -> str:
    """A run of one job that has ended."""
    run_id = await planned(store, request=job_request(traceparent=traceparent))
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, SUCCEEDED)
    return run_id


async def traceable(store: JobStore, limit: int = 100) -> list[str]:
    return [each.run.run_id for each in await store.take_traces(limit, LEASED_SECONDS)]


async def test_a_run_waits_to_be_traced_once_it_has_ended(tracing: JobStore) -> None:
    run_id = await planned(tracing)
    assert await traceable(tracing) == []
    (claim,) = await claimed(tracing)
    assert await traceable(tracing) == []
    assert await tracing.finish(claim.key, SUCCEEDED)
    assert await traceable(tracing) == [run_id]


async def test_a_leased_run_comes_again_unless_it_was_traced(tracing: JobStore, clock: ManualClock) -> None:
    runs = [await ended(tracing) for _ in range(3)]
    assert await traceable(tracing, limit=2) == runs[:2]
    assert await traceable(tracing) == runs[2:]
    assert await traceable(tracing) == []
    await tracing.traced([runs[0]])
    clock.forward(LEASED_SECONDS + 0.1)
    assert await traceable(tracing) == runs[1:]
    await tracing.traced(runs)
    clock.forward(LEASED_SECONDS + 0.1)
    assert await traceable(tracing) == []


async def test_what_waits_is_there_after_a_restart(opened: OpenStore) -> None:
    async with opened(sampler=ALL) as store:
        run_id = await ended(store)
    async with opened(sampler=ALL) as store:
        assert await traceable(store) == [run_id]


async def test_a_run_is_whole_with_its_request_its_jobs_and_all_their_attempts(
    tracing: JobStore, clock: ManualClock
) -> None:
    request = job_request()
    run_id = await planned(
        tracing, job("true", name="build"), job("true", name="test", needs=("build",)), request=request
    )
    (claim,) = await claimed(tracing)
    assert await tracing.finish(claim.key, CHECKOUT_ERRORED)
    clock.forward(3600)
    await tracing.rescue()
    for _ in range(2):
        (claim,) = await claimed(tracing)
        assert await tracing.finish(claim.key, SUCCEEDED)
    other = await ended(tracing)
    first, second = await tracing.take_traces(100, LEASED_SECONDS)
    assert (first.run.run_id, second.run.run_id) == (run_id, other)
    assert first.request == request.encode()
    assert first.run.finished_at is not None
    assert [each.name for each in first.jobs] == ["build", "test"]
    build, test = (each.job_id for each in first.jobs)
    assert sorted((each.job_id, each.number) for each in first.attempts) == sorted(
        [(build, 1), (build, 2), (test, 1)]
    )
    assert [each.name for each in second.jobs] == ["test"]
    assert len(second.attempts) == 1


async def test_the_first_steps_of_a_run_come_with_it_and_nothing_that_a_job_wrote(
    tracing: JobStore, clock: ManualClock
) -> None:
    async def build(*steps: str) -> None:
        (claim,) = await claimed(tracing)
        chunks = [LogChunk(sequence=1, at=clock(), data=b"$ by the job\n")]
        for number, step in enumerate(steps, start=2):
            data = f"{step}\n".encode()
            chunks.append(LogChunk(sequence=number, at=clock() + number, data=data, kind=ChunkKind.MARK))
        assert await tracing.append_log(claim.key, chunks)
        assert await tracing.finish(claim.key, SUCCEEDED)

    await planned(tracing)
    await build(*(f"$ {number}" for number in range(READ_STEPS + 5)))
    await planned(tracing, job("true", name="build"), job("true", name="test", needs=("build",)))
    await build("$ checkout", "! a remark", "$ work")
    await build("$ more work")
    many, few = await tracing.take_traces(100, LEASED_SECONDS)
    assert [each.mark for each in many.steps] == [f"$ {number}\n".encode() for number in range(READ_STEPS)]
    build_id, test_id = (each.job_id for each in few.jobs)
    assert few.steps == [
        BegunStep(build_id, 1, clock() + 2, b"$ checkout\n"),
        BegunStep(build_id, 1, clock() + 4, b"$ work\n"),
        BegunStep(test_id, 1, clock() + 2, b"$ more work\n"),
    ]


async def test_a_run_that_could_not_be_planned_is_traced(tracing: JobStore) -> None:
    run_id = await admitted(tracing)
    assert await tracing.not_planned(await planning_task(tracing), Reason.INVALID_WORKFLOW, "no job")
    (run,) = await tracing.take_traces(100, LEASED_SECONDS)
    assert (run.run.run_id, run.jobs, run.attempts) == (run_id, [], [])


async def test_an_unsampled_run_is_not_traced(tracing: JobStore) -> None:
    await ended(tracing, UNTRACED)
    sampled = await ended(tracing, TRACED)
    assert await traceable(tracing) == [sampled]


async def test_a_rerun_is_a_run_of_its_own_in_the_same_trace(tracing: JobStore) -> None:
    first = await ended(tracing, TRACED)
    again = await tracing.rerun(first)
    assert again is not None
    assert await tracing.planned(await planning_task(tracing), (job("true"),))
    (claim,) = await claimed(tracing)
    assert await tracing.finish(claim.key, SUCCEEDED)
    runs = await tracing.take_traces(100, LEASED_SECONDS)
    assert [each.run.run_id for each in runs] == [first, again.run_id]
    assert all(TRACED.encode() in each.request for each in runs)


async def test_nothing_waits_in_a_store_that_does_not_trace(store: JobStore) -> None:
    await ended(store, TRACED)
    assert await traceable(store) == []
    assert {each.traceparent for each in await outbox_statuses(store)} == {TRACED}


async def test_statuses_name_the_span_of_their_run(tracing: JobStore) -> None:
    request = job_request(traceparent=TRACED)
    run_id = await planned(tracing, request=request)
    (claim,) = await claimed(tracing)
    assert await tracing.finish(claim.key, SUCCEEDED)
    named = {each.traceparent for each in await outbox_statuses(tracing)}
    assert named == {run_traceparent(request, run_id, ALL)}


async def test_a_purged_run_is_not_traced_any_more(tracing: JobStore, clock: ManualClock) -> None:
    await ended(tracing)
    clock.forward(2 * DAY)
    assert (await tracing.purge(DAY, 100)).runs == 1
    assert await traceable(tracing) == []


# -- the inbox -----------------------------------------------------------------------------------------------------

OpenInbox = Callable[[], AbstractAsyncContextManager[InboxStore]]


@pytest.fixture
def open_again(empty_url: str) -> OpenInbox:
    return lambda: open_inbox(empty_url)


@pytest.fixture
async def inbox(open_again: OpenInbox) -> AsyncIterator[InboxStore]:
    async with open_again() as opened:
        yield opened


async def publish(inbox: InboxStore, *traced: str) -> None:
    """Mark all that is pending as published; of these deliveries the times are known."""
    pending = await inbox.pending(100)
    times = [
        PublishTimes(row_id=each.row_id, request_id=each.request_id, sent_at=NOON + 2, confirmed_at=NOON + 3)
        for each in pending
        if each.request_id in {f"request of forgejo {name}" for name in traced}
    ]
    await inbox.published([each.row_id for each in pending], times)


async def test_a_published_request_waits_to_be_traced_also_after_a_restart(open_again: OpenInbox) -> None:
    async with open_again() as inbox:
        inbox.stored_times = StoredTimes(lambda: NOON + 1)
        await inbox.keep(delivery("a"))
        await inbox.keep(delivery("b"))
        await publish(inbox, "a")
        assert await inbox.backlog() == 0
    async with open_again() as inbox:
        (waiting,) = await inbox.take_traces(NOON, until=NOON + 15, limit=100)
    assert (waiting.source_name, waiting.delivery_id, waiting.event_name) == ("forgejo", "a", "push")
    assert waiting.request == REQUEST
    assert waiting.headers == {"x-forgejo-event": "push"}
    times = (waiting.received_at, waiting.stored_at, waiting.sent_at, waiting.confirmed_at)
    assert times == (NOON, NOON + 1, NOON + 2, NOON + 3)


async def test_the_time_of_storing_is_unknown_after_a_restart(inbox: InboxStore) -> None:
    await inbox.keep(delivery("a"))
    await publish(inbox, "a")
    (waiting,) = await inbox.take_traces(NOON, until=NOON + 15, limit=100)
    assert waiting.stored_at is None


async def test_a_leased_request_comes_again_unless_it_was_traced(inbox: InboxStore) -> None:
    for name in ("a", "b", "c"):
        await inbox.keep(delivery(name))
    await publish(inbox, "a", "b", "c")
    first = await inbox.take_traces(NOON, until=NOON + 15, limit=2)
    assert [each.delivery_id for each in first] == ["a", "b"]
    assert [each.delivery_id for each in await inbox.take_traces(NOON, until=NOON + 15, limit=9)] == ["c"]
    assert list(await inbox.take_traces(NOON + 14, until=NOON + 29, limit=9)) == []
    await inbox.traced([first[0].row_id])
    again = await inbox.take_traces(NOON + 15, until=NOON + 30, limit=9)
    assert [each.delivery_id for each in again] == ["b", "c"]
    await inbox.traced([each.row_id for each in (*first, *again)])
    assert list(await inbox.take_traces(NOON + 60, until=NOON + 75, limit=9)) == []


async def test_times_may_be_recorded_again(inbox: InboxStore) -> None:
    await inbox.keep(delivery("a"))
    (pending,) = await inbox.pending(1)
    times = PublishTimes(row_id=pending.row_id, request_id=pending.request_id, sent_at=1.0, confirmed_at=2.0)
    await inbox.published([pending.row_id], [times])
    await inbox.published([pending.row_id], [times])
    assert len(await inbox.take_traces(NOON, until=NOON + 15, limit=9)) == 1


async def test_a_forgotten_delivery_is_not_traced_any_more(inbox: InboxStore) -> None:
    await inbox.keep(delivery("a"))
    await publish(inbox, "a")
    assert (await inbox.forget(NOON + DAY, 100)).rows == 1
    assert list(await inbox.take_traces(NOON, until=NOON + 15, limit=9)) == []


def test_of_too_many_stored_times_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solstice_forge.inbox.traced_requests.MOST_STORED", 3)
    stored = StoredTimes(lambda: NOON)
    stored.note(["a", None, "b"])
    stored.note(["c", "d"])
    assert [stored.take(each) for each in "abcd"] == [None, NOON, NOON, NOON]
    assert stored.take("d") is None
