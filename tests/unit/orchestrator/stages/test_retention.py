"""Old runs are removed: when, in which steps, and through every failure."""

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.domain.identifiers import id_source, lowest_id
from solstice_orchestrator.stages.retention import (
    DAY_SECONDS,
    PAUSE_SECONDS,
    RUNS_PER_PURGE,
    SWEEP_SECONDS,
    purge_all,
    run_retention,
)
from solstice_orchestrator.store.protocol import Purged


class SeenEnough(Exception):
    """Ends the loop under test."""


class Store:
    """Returns these answers, one after the other."""

    def __init__(self, *answers: Purged | Exception) -> None:
        self.answers = list(answers)
        self.purges: list[tuple[float, int]] = []

    async def purge(self, older_than_seconds: float, limit: int) -> Purged:
        self.purges.append((older_than_seconds, limit))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Sleep:
    """Passes at once; the test is over when there is nothing left to answer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.store.answers:
            raise SeenEnough


async def pauses_of(store: Store, *, days: float = 90.0) -> list[float]:
    """The pauses that were made until all answers had been given."""
    sleep = Sleep(store)
    with pytest.raises(SeenEnough):
        await run_retention(store, days=days, rng=random.Random(7), sleep=sleep)
    return sleep.slept


async def test_it_looks_about_once_an_hour_and_first_somewhere_within_the_hour() -> None:
    store = Store(*[Purged(runs=0, more=False)] * 20)
    first, *others = await pauses_of(store)
    assert 0 <= first <= SWEEP_SECONDS
    assert len(others) == 20
    assert all(SWEEP_SECONDS * 0.8 <= pause <= SWEEP_SECONDS * 1.2 for pause in others)
    assert len(set(others)) == 20
    assert store.purges == [(90 * DAY_SECONDS, RUNS_PER_PURGE)] * 20


async def test_what_there_is_goes_in_steps_with_a_pause_between_them() -> None:
    store = Store(Purged(runs=50, more=True), Purged(runs=0, more=True), Purged(runs=3, more=False))
    assert (await pauses_of(store))[1:3] == [PAUSE_SECONDS, PAUSE_SECONDS]


@pytest.mark.parametrize(
    "trouble",
    [StoreUnavailable("the database", "away"), LookupError("a bug")],
    ids=["away", "mistake"],
)
async def test_trouble_ends_the_look_and_not_the_loop(trouble: Exception) -> None:
    store = Store(Purged(runs=50, more=True), trouble, Purged(runs=1, more=False))
    pauses = await pauses_of(store)
    assert len(store.purges) == 3
    assert pauses[2] > PAUSE_SECONDS


async def test_zero_days_keep_everything() -> None:
    store = Store()
    await run_retention(store, days=0, rng=random.Random(7), sleep=Sleep(store))
    assert store.purges == []


async def test_all_rows_are_counted_and_progress_is_reported() -> None:
    store, reported = Store(Purged(runs=2, more=True), Purged(runs=1, more=False)), list[int]()
    assert await purge_all(store, 60.0, removed=reported.append, sleep=Sleep(store)) == 3
    assert reported == [2, 3]


@given(made=st.integers(0, 2**44), bound=st.integers(0, 2**44))
def test_ids_made_before_a_moment_sort_below_its_lowest_and_all_others_above(made: int, bound: int) -> None:
    made_id = id_source(random.Random(made))(made / 1000)
    assert str(uuid.UUID(lowest_id(bound / 1000))) == lowest_id(bound / 1000)
    assert (int(made / 1000 * 1000) < int(bound / 1000 * 1000)) == (made_id < lowest_id(bound / 1000))
