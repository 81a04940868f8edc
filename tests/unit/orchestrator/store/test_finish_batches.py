"""Ends are recorded in groups, each exactly once, and everybody gets an answer."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.store.decisions.finish import AttemptEnd
from solstice_orchestrator.store.finish_batches import FinishBatcher
from solstice_orchestrator.store.protocol import AttemptKey
from tests.stores import SUCCEEDED


def end_of(number: int) -> AttemptEnd:
    return (AttemptKey(job_id=str(number), number=1), SUCCEEDED)


class RecordingWriter:
    """Records ends, after as many turns of the loop as it is told."""

    def __init__(self, turns: Sequence[int] = (1,), wrong: str = "") -> None:
        self.groups: list[list[str]] = []
        self.at_once = self.most_at_once = 0
        self._turns = turns
        self._wrong = wrong

    async def write(self, group: Sequence[AttemptEnd]) -> Sequence[bool]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        ids = [key.job_id for key, _ in group]
        self.groups.append(ids)
        for _ in range(self._turns[len(self.groups) % len(self._turns)]):
            await asyncio.sleep(0)
        self.at_once -= 1
        if self._wrong in ids:
            raise LookupError(self._wrong)
        return [int(job_id) % 2 == 0 for job_id in ids]


async def test_ends_of_one_turn_are_one_group() -> None:
    book = RecordingWriter()
    finishing = FinishBatcher(book.write)
    answers = await asyncio.gather(*[finishing(end_of(number)) for number in range(5)])
    assert answers == [True, False, True, False, True]
    assert book.groups == [["0", "1", "2", "3", "4"]]


@given(
    pauses=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    at_once=st.integers(1, 2),
)
def test_whenever_an_end_comes_it_is_recorded_once_and_answered(
    pauses: list[int], turns: list[int], at_once: int
) -> None:
    async def all_of_them() -> None:
        book = RecordingWriter(turns)
        finishing = FinishBatcher(book.write, at_once)

        async def come(number: int) -> bool:
            for _ in range(sum(pauses[: number + 1])):
                await asyncio.sleep(0)
            return await finishing(end_of(number))

        async with asyncio.timeout(10):
            answers = await asyncio.gather(*[come(number) for number in range(len(pauses))])
        assert answers == [number % 2 == 0 for number in range(len(pauses))]
        recorded = [job_id for group in book.groups for job_id in group]
        assert sorted(recorded, key=int) == [str(number) for number in range(len(pauses))]
        assert book.most_at_once <= at_once

    asyncio.run(all_of_them())


async def test_one_that_is_wrong_fails_alone() -> None:
    finishing = FinishBatcher(RecordingWriter(wrong="1").write)
    good, bad, other = await asyncio.gather(
        *[finishing(end_of(number)) for number in (0, 1, 2)], return_exceptions=True
    )
    assert (good, other) == (True, True)
    assert isinstance(bad, LookupError)


async def test_a_store_that_is_away_is_told_to_all_and_asked_once() -> None:
    asked = []

    async def away(group: Sequence[AttemptEnd]) -> Sequence[bool]:
        asked.append(len(group))
        raise StoreUnavailable("the database", "gone")

    finishing = FinishBatcher(away)
    answers = await asyncio.gather(
        *[finishing(end_of(number)) for number in range(3)], return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert asked == [3]


async def test_who_gives_up_waiting_leaves_the_others_their_answers() -> None:
    book = RecordingWriter([3])
    finishing = FinishBatcher(book.write)
    first, second = (finishing(end_of(number)) for number in (0, 2))
    first.cancel()
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert book.groups == [["0", "2"]]
