"""What every store of statuses promises; written against the protocol, run on every implementation."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from solstice_forge.remote.call_pacing import CallLimits
from solstice_forge.statuses.call_endings import Reported, RetryLater, StatusNotSent, Undeliverable
from solstice_forge.statuses.protocol import OutgoingStatus, ReportPhase, StatusKeepResult, StatusStore
from solstice_forge.statuses.status_service import open_statuses
from tests.polling import wait_until
from tests.statuses import reportable_status, run_id

OpenStatuses = Callable[[], AbstractAsyncContextManager[StatusStore]]

NOON = 1_790_000_000.0
HORIZON = 30.0
NO_LIMITS = CallLimits()


@pytest.fixture
def another(empty_url: str) -> OpenStatuses:
    """Open the test's store once more, as another process would."""
    return lambda: open_statuses(empty_url)


@pytest.fixture
async def idle(another: OpenStatuses) -> AsyncIterator[StatusStore]:
    """A store without the leader lock."""
    async with another() as opened:
        yield opened


@pytest.fixture
async def store(idle: StatusStore) -> AsyncIterator[StatusStore]:
    """A store with the leader lock."""
    async with idle.lead():
        yield idle


async def take(store: StatusStore, now: float = NOON) -> OutgoingStatus:
    found = await store.take("forgejo", now, NO_LIMITS)
    assert isinstance(found, OutgoingStatus), found
    return found


async def end(store: StatusStore, outgoing: OutgoingStatus, ending: Any, now: float = NOON) -> None:
    await store.ended(outgoing, ending, now=now, horizon=HORIZON, limits=NO_LIMITS)


async def test_what_is_kept_is_taken_also_after_the_end(another: OpenStatuses) -> None:
    async with another() as first:
        assert await first.keep([reportable_status("running")], NOON) == [StatusKeepResult.WANTED]
    async with another() as second, second.lead():
        outgoing = await take(second)
        assert (outgoing.state, outgoing.repository, outgoing.final) == ("running", "river/app", False)
        assert outgoing.body == reportable_status("running").body
        await end(second, outgoing, Reported())
        assert await second.pending() == 0
        assert await second.take("forgejo", NOON, NO_LIMITS) is None


@pytest.mark.parametrize(
    ("first", "then", "stored"),
    [
        ({"sequence": 2}, {"sequence": 1}, StatusKeepResult.STALE),
        ({"sequence": 2}, {"sequence": 2}, StatusKeepResult.STALE),
        ({"sequence": 2}, {"sequence": 3}, StatusKeepResult.WANTED),
        ({"sequence": 2}, {"sequence": 10}, StatusKeepResult.WANTED),
        ({"run": 2, "sequence": 9}, {"run": 3, "sequence": 1}, StatusKeepResult.WANTED),
        ({"run": 2, "sequence": 1}, {"run": 1, "sequence": 9}, StatusKeepResult.STALE),
        ({"sequence": 2}, {"sequence": 2, "revision": 1}, StatusKeepResult.WANTED),
        ({"sequence": 2, "revision": 5}, {"sequence": 2, "revision": 4}, StatusKeepResult.STALE),
        ({"sequence": 2, "revision": 5}, {"sequence": 3}, StatusKeepResult.WANTED),
        ({"sequence": 9}, {"sequence": 1, "context": "solstice/other"}, StatusKeepResult.WANTED),
        ({"sequence": 9}, {"sequence": 1, "commit_sha": "c" * 40}, StatusKeepResult.WANTED),
        ({"sequence": 9}, {"sequence": 1, "repo_full_name": "river/mill"}, StatusKeepResult.WANTED),
    ],
    ids=[
        "older",
        "the same",
        "the next",
        "later by number, not by letter",
        "of a newer run",
        "of an older run",
        "a new description",
        "an older description",
        "after a description",
        "of another context",
        "of another commit",
        "of another repository",
    ],
)
async def test_only_what_is_newer_in_its_context_is_kept(
    idle: StatusStore, first: dict[str, Any], then: dict[str, Any], stored: StatusKeepResult
) -> None:
    assert await idle.keep([reportable_status("running", **first)], NOON) == [StatusKeepResult.WANTED]
    assert await idle.keep([reportable_status("running", **then)], NOON) == [stored]


async def test_answers_are_in_the_order_of_what_was_asked(idle: StatusStore) -> None:
    group = [
        reportable_status(sequence=2, context="solstice/b"),
        reportable_status(sequence=1, context="solstice/b"),
        reportable_status(sequence=1, context="solstice/a"),
        reportable_status(sequence=3, context="solstice/b"),
    ]
    assert await idle.keep(group, NOON) == [
        StatusKeepResult.WANTED,
        StatusKeepResult.STALE,
        StatusKeepResult.WANTED,
        StatusKeepResult.WANTED,
    ]
    assert await idle.pending() == 2


async def test_a_newer_status_replaces_an_unsent_one(store: StatusStore) -> None:
    await store.keep(
        [reportable_status("waiting", sequence=1), reportable_status("failed", sequence=2)], NOON
    )
    assert (await take(store)).state == "failed"
    assert await store.take("forgejo", NOON, NO_LIMITS) is None


async def test_a_context_has_one_call_under_way(store: StatusStore) -> None:
    await store.keep([reportable_status("waiting", sequence=1)], NOON)
    first = await take(store)
    await store.keep([reportable_status("failed", sequence=2)], NOON)
    assert await store.take("forgejo", NOON, NO_LIMITS) is None
    await end(store, first, Reported())
    assert (await take(store)).state == "failed"


async def test_sources_are_independent(store: StatusStore) -> None:
    await store.keep([reportable_status(source="gitea")], NOON)
    assert await store.take("forgejo", NOON, NO_LIMITS) is None
    assert isinstance(await store.take("gitea", NOON, NO_LIMITS), OutgoingStatus)


async def test_a_failed_status_is_due_at_its_retry_time_and_its_failures_are_counted(
    store: StatusStore,
) -> None:
    await store.keep([reportable_status("failed")], NOON)
    await end(
        store, await take(store), RetryLater(at=NOON + 5, why="500 oops", failed=True, perhaps_done=False)
    )
    assert await store.take("forgejo", NOON + 4, NO_LIMITS) == NOON + 5
    again = await take(store, NOON + 5)
    assert (again.failures, again.failing_since) == (1, NOON)
    await end(
        store, again, RetryLater(at=NOON + 9, why="limit", failed=False, perhaps_done=False), now=NOON + 5
    )
    third = await take(store, NOON + 9)
    assert (third.failures, third.failing_since) == (1, NOON)
    (shown,) = await store.shown(run_id(1))
    assert shown.last_failure == "limit"


async def test_a_newer_one_does_not_hurry_what_fails(store: StatusStore) -> None:
    await store.keep([reportable_status("running", sequence=1)], NOON)
    await end(store, await take(store), RetryLater(at=NOON + 50, why="500", failed=True, perhaps_done=False))
    await store.keep([reportable_status("failed", sequence=2)], NOON + 1)
    assert await store.take("forgejo", NOON + 1, NO_LIMITS) == NOON + 50


async def test_what_waits_is_due_once_the_forge_is_back(store: StatusStore) -> None:
    await store.keep([reportable_status("failed")], NOON)
    await end(store, await take(store), RetryLater(at=NOON + 50, why="500", failed=True, perhaps_done=False))
    await store.retry_now("forgejo", NOON + 2)
    assert (await take(store, NOON + 2)).state == "failed"


async def test_nothing_newer_goes_out_while_an_unanswered_call_may_arrive(store: StatusStore) -> None:
    await store.keep([reportable_status("running", sequence=1)], NOON)
    await end(
        store,
        await take(store),
        RetryLater(at=NOON + 11, why="no answer", failed=True, perhaps_done=True),
        now=NOON + 10,
    )
    await store.keep([reportable_status("failed", sequence=2)], NOON + 12)
    assert await store.take("forgejo", NOON + 12, NO_LIMITS) == NOON + HORIZON
    await store.retry_now("forgejo", NOON + 13)
    assert await store.take("forgejo", NOON + 13, NO_LIMITS) == NOON + HORIZON
    assert (await take(store, NOON + HORIZON)).state == "failed"


async def test_the_same_goes_out_again_while_an_unanswered_call_may_arrive(store: StatusStore) -> None:
    await store.keep([reportable_status("running", sequence=1)], NOON)
    await end(
        store,
        await take(store),
        RetryLater(at=NOON + 11, why="no answer", failed=True, perhaps_done=True),
        now=NOON + 10,
    )
    again = await take(store, NOON + 11)
    await end(store, again, Reported(), now=NOON + 12)
    # The first call may still arrive, after the next one.
    await store.keep([reportable_status("failed", sequence=2)], NOON + 13)
    assert await store.take("forgejo", NOON + 13, NO_LIMITS) == NOON + HORIZON


async def test_calls_of_a_dead_process_may_arrive_for_a_while(another: OpenStatuses) -> None:
    async with another() as dead, dead.lead():
        await dead.keep([reportable_status("running", sequence=1)], NOON)
        orphan = await take(dead)
    async with another() as successor, successor.lead():
        assert await successor.take_over(NOON, HORIZON) == 1
        assert await successor.take_over(NOON, HORIZON) == 0
        await successor.keep([reportable_status("failed", sequence=2)], NOON + 1)
        assert await successor.take("forgejo", NOON + 1, NO_LIMITS) == NOON + HORIZON
        # A process that was taken for dead changes nothing any more.
        await end(successor, orphan, Reported(), now=NOON + 2)
        assert await successor.take("forgejo", NOON + 2, NO_LIMITS) == NOON + HORIZON


async def test_what_the_forge_refuses_leaves_a_letter(store: StatusStore) -> None:
    status = reportable_status("failed")
    await store.keep([status], NOON)
    await end(store, await take(store), Undeliverable(reason="not_found", detail="404 Not Found"))
    assert await store.pending() == 0
    (dead_letter,) = await store.dead_letters(10)
    assert (dead_letter.body, dead_letter.request_id) == (status.body, status.request_id)
    assert dead_letter.headers["x-solstice-reason"] == "not_found"
    assert dead_letter.headers["x-solstice-detail"] == "404 Not Found"
    assert dead_letter.headers["x-solstice-queue"] == "solstice.statuses.v1"
    (shown,) = await store.shown(status.request_id)
    assert (shown.phase, shown.reported_state) == (ReportPhase.DEAD, "")
    await store.published([dead_letter.row_id])
    assert await store.dead_letters(10) == []


async def test_a_replayed_dead_letter_is_due_again(store: StatusStore) -> None:
    await store.keep([reportable_status("failed")], NOON)
    await end(store, await take(store), Undeliverable(reason="not_found", detail="404"))
    assert await store.keep([reportable_status("failed")], NOON) == [StatusKeepResult.WANTED]
    again = await take(store)
    assert again.failures == 0
    await end(store, again, Reported())
    assert await store.keep([reportable_status("failed")], NOON) == [StatusKeepResult.STALE]


async def test_a_refusal_of_what_was_replaced_meanwhile_leaves_no_letter(store: StatusStore) -> None:
    await store.keep([reportable_status("running", sequence=1)], NOON)
    outgoing = await take(store)
    await store.keep([reportable_status("failed", sequence=2)], NOON)
    await end(store, outgoing, Undeliverable(reason="not_found", detail="404"))
    assert await store.dead_letters(10) == []
    assert (await take(store)).state == "failed"


async def test_first_and_final_statuses_go_before_others(store: StatusStore) -> None:
    await store.keep([reportable_status("waiting", sequence=1, context="solstice/old")], NOON)
    await end(store, await take(store), Reported())
    await store.keep([reportable_status("running", sequence=2, context="solstice/old")], NOON)
    await store.keep([reportable_status("waiting", sequence=1, context="solstice/new")], NOON + 1)
    assert (await take(store, NOON + 2)).state == "waiting"
    assert (await take(store, NOON + 2)).state == "running"


async def test_limits_are_known_to_the_next_leader(another: OpenStatuses) -> None:
    async with another() as first, first.lead():
        assert await first.limits("forgejo") == CallLimits()
        await first.keep([reportable_status()], NOON)
        spent = CallLimits(not_before=NOON + 3, paced_until=NOON + 1, strikes=2)
        await first.take("forgejo", NOON, spent)
    async with another() as second:
        assert await second.limits("forgejo") == spent


async def test_a_check_run_belongs_to_its_run(store: StatusStore) -> None:
    await store.keep([reportable_status("waiting", sequence=1)], NOON)
    outgoing = await take(store)
    assert outgoing.check_id is None
    await end(store, outgoing, Reported(check_id=42))
    await store.keep([reportable_status("running", sequence=2)], NOON)
    outgoing = await take(store)
    assert outgoing.check_id == 42
    await end(store, outgoing, Reported(check_id=42))
    await store.keep([reportable_status("waiting", run=2, sequence=1)], NOON)
    assert (await take(store)).check_id is None


async def test_what_was_spared_is_settled_and_not_shown(store: StatusStore) -> None:
    await store.keep([reportable_status("running")], NOON)
    await end(store, await take(store), StatusNotSent())
    (shown,) = await store.shown(run_id(1))
    assert (shown.phase, shown.reported_state) == (ReportPhase.REPORTED, "")


async def test_what_was_settled_long_ago_is_forgotten_and_what_waits_is_not(store: StatusStore) -> None:
    await store.keep([reportable_status("failed", context="solstice/told")], NOON)
    await end(store, await take(store), Reported())
    await store.keep([reportable_status("failed", context="solstice/waits")], NOON)
    assert await store.purge(NOON) == 0
    assert await store.purge(NOON + 1) == 1
    (left,) = await store.shown(run_id(1))
    assert left.context == "solstice/waits"


async def test_one_process_reports_at_a_time(another: OpenStatuses) -> None:
    order: list[str] = []

    async def report(name: str, store: StatusStore, go: asyncio.Event) -> None:
        async with store.lead():
            order.append(f"{name} began")
            await go.wait()
            order.append(f"{name} ended")

    async with another() as first, another() as second, asyncio.timeout(60):
        gone, at_once = asyncio.Event(), asyncio.Event()
        at_once.set()
        one = asyncio.create_task(report("one", first, gone))
        await wait_until(lambda: bool(order))
        two = asyncio.create_task(report("two", second, at_once))
        gone.set()
        await asyncio.gather(one, two)
    assert order == ["one began", "one ended", "two began", "two ended"]


async def test_a_listener_is_woken_by_deliveries_of_other_processes(another: OpenStatuses) -> None:
    async with another() as here, another() as there, here.changes() as changed, asyncio.timeout(60):
        sequences = itertools.count(1)
        while not changed.is_set():  # a notifier that has just been opened may miss a notification
            await there.keep([reportable_status(sequence=next(sequences))], NOON)
            await asyncio.sleep(0.05)
