"""Groups formed by the turn of the event loop."""

import asyncio
from collections.abc import Sequence

import pytest

from solstice_common.runtime.batcher import Batcher


class Handler:
    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.begun: list[asyncio.Future[Sequence[str]]] = []

    def __call__(self, items: Sequence[int]) -> "asyncio.Future[Sequence[str]]":
        self.groups.append(list(items))
        self.begun.append(asyncio.get_running_loop().create_future())
        return self.begun[-1]

    def answer(self, group: int) -> None:
        self.begun[group].set_result([f"answer to {item}" for item in self.groups[group]])


async def loop_iteration() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_items_of_one_turn_are_one_group_and_everybody_gets_his_own_answer() -> None:
    handler = Handler()
    gathering = Batcher(handler)
    callers = [asyncio.create_task(gathering(item)) for item in range(5)]
    await loop_iteration()
    late = asyncio.create_task(gathering(9))
    await loop_iteration()
    assert handler.groups == [[0, 1, 2, 3, 4], [9]]
    handler.answer(1)
    assert await late == "answer to 9"
    handler.answer(0)
    assert await asyncio.gather(*callers) == [f"answer to {item}" for item in range(5)]


async def test_a_failure_is_that_of_its_turn_only() -> None:
    handler = Handler()
    gathering = Batcher(handler)
    first = [asyncio.create_task(gathering(item)) for item in (1, 2)]
    await loop_iteration()
    second = asyncio.create_task(gathering(3))
    await loop_iteration()
    handler.begun[0].set_exception(OSError("full"))
    handler.answer(1)
    assert [str(error) for error in await asyncio.gather(*first, return_exceptions=True)] == ["full", "full"]
    assert await second == "answer to 3"


async def test_a_caller_that_gives_up_takes_nobody_with_him() -> None:
    handler = Handler()
    gathering = Batcher(handler)
    callers = [asyncio.create_task(gathering(item)) for item in (1, 2)]
    await loop_iteration()
    callers[0].cancel()
    await loop_iteration()
    handler.answer(0)
    assert await callers[1] == "answer to 2"


async def test_a_failure_that_nobody_waits_for_disturbs_nobody() -> None:
    handler = Handler()
    caller = asyncio.create_task(Batcher(handler)(1))
    await loop_iteration()
    caller.cancel()
    await loop_iteration()
    handler.begun[0].set_exception(OSError("full"))
    await loop_iteration()


async def test_work_that_cannot_even_begin_is_told_to_its_callers() -> None:
    def closed(_: Sequence[int]) -> "asyncio.Future[Sequence[str]]":
        raise OSError("closed")

    with pytest.raises(OSError, match="closed"):
        await Batcher(closed)(1)


async def test_work_that_cannot_begin_disturbs_nobody_when_its_callers_have_gone() -> None:
    def closed(_: Sequence[int]) -> "asyncio.Future[Sequence[str]]":
        raise OSError("closed")

    caller = asyncio.create_task(Batcher(closed)(1))
    await asyncio.sleep(0)
    caller.cancel()
    await loop_iteration()
    assert caller.cancelled()
