"""Items are handled in batches, each exactly once, and every caller gets its own answer."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.batcher import UNLIMITED, Batcher


class Writer:
    """Doubles numbers, taking the given number of event-loop iterations; fails on `wrong`."""

    def __init__(self, iterations: Sequence[int] = (1,), wrong: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.under_way = self.most_under_way = 0
        self._iterations = iterations
        self._wrong = wrong

    async def write(self, items: Sequence[int]) -> Sequence[int]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.batches.append(list(items))
        await loop_iterations(self._iterations[len(self.batches) % len(self._iterations)])
        self.under_way -= 1
        if self._wrong in items:
            raise LookupError(self._wrong)
        return [item * 2 for item in items]


class StuckWriter:
    """Ends no batch before the test allows it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let_go = asyncio.Event()

    async def write(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        await self.let_go.wait()
        return items


async def loop_iterations(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_of_one_iteration_are_one_batch() -> None:
    writer = Writer()
    batcher = Batcher(writer.write, name="test", at_once=1)
    assert await asyncio.gather(*map(batcher, range(5))) == [0, 2, 4, 6, 8]
    assert writer.batches == [[0, 1, 2, 3, 4]]


async def test_items_that_come_during_a_batch_are_the_next_one() -> None:
    writer = StuckWriter()
    batcher = Batcher(writer.write, name="test", at_once=1)
    first = batcher(1)
    await loop_iterations()
    others = [batcher(2), batcher(3)]
    await loop_iterations()
    assert writer.batches == [[1]]
    writer.let_go.set()
    assert await asyncio.gather(first, *others) == [1, 2, 3]
    assert writer.batches == [[1], [2, 3]]


async def test_without_a_limit_every_iteration_is_a_batch() -> None:
    writer = StuckWriter()
    batcher = Batcher(writer.write, name="test", at_once=UNLIMITED, most=UNLIMITED)
    answers = []
    for items in ((1, 2), (3,), (4, 5)):
        answers += [batcher(item) for item in items]
        await loop_iterations()
    assert writer.batches == [[1, 2], [3], [4, 5]]
    writer.let_go.set()
    assert await asyncio.gather(*answers) == [1, 2, 3, 4, 5]


async def test_a_batch_has_a_largest_size() -> None:
    writer = Writer()
    batcher = Batcher(writer.write, name="test", at_once=1, most=2)
    assert await asyncio.gather(*map(batcher, range(5))) == [0, 2, 4, 6, 8]
    assert writer.batches == [[0, 1], [2, 3], [4]]


@given(
    pauses=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    iterations=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    at_once=st.sampled_from([1, 2, UNLIMITED]),
    most=st.sampled_from([1, 3, 256]),
)
def test_whenever_an_item_comes_it_is_handled_once_and_answered(
    pauses: list[int], iterations: list[int], at_once: int, most: int
) -> None:
    async def all_of_them() -> None:
        writer = Writer(iterations)
        batcher = Batcher(writer.write, name="test", at_once=at_once, most=most)

        async def come(number: int) -> int:
            await loop_iterations(sum(pauses[: number + 1]))
            return await batcher(number)

        async with asyncio.timeout(10):
            answers = await asyncio.gather(*map(come, range(len(pauses))))
        assert answers == [number * 2 for number in range(len(pauses))]
        handled = [number for batch in writer.batches for number in batch]
        assert sorted(handled) == list(range(len(pauses)))
        if at_once == 1:
            assert handled == sorted(handled), "one batch at a time keeps the order"
        assert max(map(len, writer.batches)) <= most
        assert writer.most_under_way <= at_once

    asyncio.run(all_of_them())


async def test_an_item_at_fault_fails_alone() -> None:
    writer = Writer(wrong=3)
    batcher = Batcher(writer.write, name="test", at_once=2)
    answers = await asyncio.gather(*map(batcher, range(6)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, int, int, LookupError, int, int]
    assert writer.batches == [[0, 1, 2, 3, 4, 5], [0], [1], [2], [3], [4], [5]]


async def test_a_store_that_is_away_fails_all_and_is_asked_once() -> None:
    sizes = []

    async def away(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        raise StoreUnavailable("the database", "gone")

    batcher = Batcher(away, name="test", at_once=2)
    answers = await asyncio.gather(*map(batcher, range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert sizes == [3]


async def test_work_that_cannot_even_begin_fails_its_callers() -> None:
    def closed(_: Sequence[int]) -> "asyncio.Future[Sequence[int]]":
        raise OSError("closed")

    with pytest.raises(OSError, match="closed"):
        await Batcher(closed, name="test", at_once=1)(1)


async def test_a_failed_batch_fails_no_other() -> None:
    writer = Writer(wrong=1)
    batcher = Batcher(writer.write, name="test", at_once=UNLIMITED)
    failing = batcher(1)
    await loop_iterations(1)
    assert await batcher(2) == 4
    with pytest.raises(LookupError):
        await failing


@pytest.mark.parametrize("wrong", [None, 1], ids=["answered", "failed"])
async def test_a_cancelled_caller_cancels_no_other(wrong: int | None) -> None:
    writer = Writer([3], wrong=wrong)
    batcher = Batcher(writer.write, name="test", at_once=1)
    first, second = batcher(1), batcher(2)
    first.cancel()
    assert await second == 4
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_callers_of_work_that_hangs_do_not_wait_for_it_and_the_next_batch_goes_on() -> None:
    writer = StuckWriter()
    batcher = Batcher(writer.write, name="the database", at_once=1, answer_seconds=0.01)
    with pytest.raises(StoreUnavailable, match=r"the database.*no answer within 0\.01 s"):
        await batcher(1)
    writer.let_go.set()
    assert await batcher(2) == 2


async def test_closing_waits_for_what_was_asked() -> None:
    writer = Writer([5])
    async with aclosing(Batcher(writer.write, name="test", at_once=1, most=2, answer_seconds=60)) as batcher:
        answers = list(map(batcher, range(3)))
    assert [answer.result() for answer in answers] == [0, 2, 4]


@pytest.mark.parametrize("answer_seconds", [None, 60], ids=["no limit", "limited"])
async def test_closing_leaves_no_caller_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, answer_seconds: float | None
) -> None:
    monkeypatch.setattr("solstice_common.runtime.batcher.END_SECONDS", 0.01)
    writer = StuckWriter()
    async with aclosing(
        Batcher(writer.write, name="test", at_once=1, most=2, answer_seconds=answer_seconds)
    ) as batcher:
        answers = list(map(batcher, range(3)))
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [str(StoreUnavailable("test", "it was closed"))] * 3
    assert writer.batches == [[0, 1]]
