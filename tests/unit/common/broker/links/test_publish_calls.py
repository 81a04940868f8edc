"""Outcomes of a publish call: their order, their time limit, and cancellation."""

import asyncio

import pytest

from solstice_common.broker.links.publish_calls import PublishCalls
from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus

REJECTED = Published(PublishStatus.REJECTED, "full")


def calls(timeout_seconds: float = 30.0) -> PublishCalls[str]:
    return PublishCalls(timeout_seconds=timeout_seconds, why_overdue=lambda: "blocked")


async def begun(to: PublishCalls[str], *messages: str) -> "asyncio.Task[list[Published]]":
    to.wake.clear()
    call = asyncio.create_task(to.publish(messages))
    await to.wake.wait()
    return call


async def test_outcomes_have_the_order_of_the_messages_and_the_first_of_each_counts() -> None:
    publisher = calls()
    one, other = await begun(publisher, "a", "b"), await begun(publisher, "c")
    a, b, c = publisher.waiting
    assert [a.message, b.message, c.message] == ["a", "b", "c"]
    c.settle(CONFIRMED)
    b.settle(CONFIRMED)
    b.settle(REJECTED)
    a.settle(REJECTED)
    assert await one == [REJECTED, CONFIRMED]
    assert await other == [CONFIRMED]


async def test_what_has_no_outcome_in_time_is_unknown_and_no_longer_wanted() -> None:
    publisher = calls(timeout_seconds=0.01)
    call = await begun(publisher, "a", "b")
    a, b = publisher.waiting
    a.settle(CONFIRMED)
    b.call.answers.append(answer := asyncio.get_running_loop().create_future())
    assert await call == [CONFIRMED, Published(PublishStatus.UNKNOWN, "blocked")]
    assert answer.cancelled()
    assert not b.is_awaited


async def test_a_call_ends_in_time_after_earlier_ones_had_their_outcomes() -> None:
    publisher = calls(timeout_seconds=0.5)
    answered = await begun(publisher, "a")
    publisher.waiting.popleft().settle(CONFIRMED)
    assert await answered == [CONFIRMED]
    await asyncio.sleep(0.1)
    later = [await begun(publisher, "b"), await begun(publisher, "c")]
    overdue = Published(PublishStatus.UNKNOWN, "blocked")
    assert [await call for call in later] == [[overdue], [overdue]]


async def test_a_cancelled_caller_wants_nothing_any_more() -> None:
    publisher = calls()
    call = await begun(publisher, "a")
    assert publisher.waiting[0].is_awaited
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not publisher.waiting[0].is_awaited


async def test_what_was_not_written_at_the_end_is_unknown() -> None:
    publisher = calls()
    call = await begun(publisher, "a")
    publisher.close()
    assert [outcome.status for outcome in await call] == [PublishStatus.UNKNOWN]
    assert not publisher.waiting


async def test_nothing_published_has_no_outcome_to_wait_for() -> None:
    assert await calls().publish([]) == []
