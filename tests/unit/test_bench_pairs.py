"""The bench measures two ways of doing the same thing in turn."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.bench.pairs import Comparison, compare


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector without automatic collections."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def _compared(*, rounds: int) -> tuple[Comparison, list[str]]:
    """A comparison of two ways that leave garbage; what each round found."""
    left: list[weakref.ref[_Cycle]] = []
    found: list[str] = []

    async def way(name: str, number: int) -> float:
        uncollected = sum(each() is not None for each in left)
        found.append(f"{name} {number}: {uncollected} left, {len(gc.get_objects()) < 1000}")
        left.append(weakref.ref(_Cycle()))
        return 2.0 if name == "ours" else 1.0

    comparison = asyncio.run(
        compare(
            "it",
            ours=lambda number: way("ours", number),
            yardstick=lambda number: way("plain", number),
            rounds=rounds,
            goal=1.0,
        )
    )
    return comparison, found


def test_rounds_alternate_who_goes_first_after_an_uncounted_one_of_each() -> None:
    comparison, found = _compared(rounds=2)
    assert [each.partition(":")[0] for each in found] == [
        "ours -1", "plain -1", "plain 0", "ours 0", "ours 1", "plain 1",
    ]  # fmt: skip
    assert (comparison.ours, comparison.yardstick, comparison.ratio) == ([2.0, 2.0], [1.0, 1.0], 2.0)


def test_no_round_pays_for_the_garbage_or_the_modules_that_were_there_before() -> None:
    _, found = _compared(rounds=1)
    assert [each.partition(": ")[2] for each in found] == ["0 left, True"] * 4
