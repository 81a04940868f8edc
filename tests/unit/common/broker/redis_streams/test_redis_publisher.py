"""Which of the waiting messages one script call takes."""

import asyncio
from collections import deque

import pytest

from solstice_common.broker.links.publish_calls import GROUP_BYTES, PendingMessage, PublishCall
from solstice_common.broker.redis_streams.redis_publisher import ENOUGH_MESSAGES, MOST_MESSAGES, next_group
from solstice_common.broker.redis_streams.stream_entries import NewStreamEntry

Waiting = deque[PendingMessage[NewStreamEntry]]


def waiting_of(*calls: int, size: int = 10) -> Waiting:
    """The messages of callers that publish so many each, in order."""
    loop = asyncio.get_running_loop()
    waiting = Waiting()
    for count in calls:
        call = PublishCall([None] * count, count, loop.create_future())
        waiting.extend(PendingMessage(call, index, _entry(size)) for index in range(count))
    return waiting


@pytest.mark.parametrize(
    ("calls", "groups"),
    [
        ((), [0]),
        ((1, 1, 1), [3, 0]),
        ((1,) * 200, [100, 100, 0]),
        ((1,) * 99 + (400,), [499, 0]),
        ((1,) * 99 + (401,), [500, 0]),
        ((1,) * 99 + (402,), [99, 402, 0]),
        ((256, 256), [256, 256, 0]),
        ((1200, 1), [500, 500, 200, 1, 0]),
    ],
)
async def test_a_call_takes_enough_and_leaves_the_messages_of_one_caller_together(
    calls: tuple[int, ...], groups: list[int]
) -> None:
    waiting = waiting_of(*calls)
    assert (ENOUGH_MESSAGES, MOST_MESSAGES) == (100, 500)
    assert [len(next_group(waiting)) for _ in groups] == groups


async def test_messages_keep_their_order() -> None:
    waiting = waiting_of(3, 1, 700, 1)
    before = list(waiting)
    after = []
    while group := next_group(waiting):
        after += group
    assert after == before


async def test_large_messages_fill_a_call_sooner() -> None:
    waiting = waiting_of(*(1,) * 4, size=GROUP_BYTES // 2)
    assert [len(next_group(waiting)) for _ in range(3)] == [2, 2, 0]


async def test_messages_whose_caller_has_gone_are_left_out() -> None:
    waiting = waiting_of(2, 2)
    waiting[0].call.done.cancel()
    assert [pending.index for pending in next_group(waiting)] == [0, 1]
    assert not waiting


def _entry(size: int) -> NewStreamEntry:
    return NewStreamEntry(exchange="e", routing_key="k", key="", repeat=False, meta=b"", body=b"x" * size)
