import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.queue_times.forecast import (
    BusySlot,
    ForecastAccuracy,
    JobsAhead,
    Sample,
    check_forecast,
    durations,
    forecast,
)

NOW = 1000.0


def samples(*seconds: float, repository: str = "acme/app") -> list[Sample]:
    return [Sample(repository=repository, seconds=each) for each in seconds]


def busy(*for_seconds: float, repository: str = "acme/app") -> list[BusySlot]:
    return [BusySlot(repository=repository, for_seconds=each) for each in for_seconds]


def line(own: int = 0, others: int = 0) -> JobsAhead:
    return JobsAhead(repository="acme/app", own=own, others=others)


ALIKE = samples(60, 60, 60, 60)


@pytest.mark.parametrize(
    ("slots", "running", "ahead", "recent", "expected"),
    [
        pytest.param(0, [], line(), ALIKE, None, id="no slots, no start"),
        pytest.param(2, busy(5), line(), [], (0, 0), id="a free slot needs no history"),
        pytest.param(1, busy(5), line(), [], None, id="no history, no forecast"),
        pytest.param(2, [], line(others=2), ALIKE, (60, 60), id="those of others take the free slots"),
        pytest.param(1, busy(20), line(), ALIKE, (40, 40), id="what is left of the one that runs"),
        pytest.param(1, busy(20), line(own=2), ALIKE, (160, 160), id="and those ahead"),
        pytest.param(2, busy(20, 50), line(own=2), ALIKE, (70, 70), id="two slots"),
        pytest.param(
            1,
            busy(0),
            line(),
            samples(10, 20, 30, 40, 50),
            (8.6, 79.2),
            id="wider than what so few have shown",
        ),
        pytest.param(
            1, busy(25), line(), samples(10, 20, 30, 40, 50), (0, 45.8), id="of those that ran as long"
        ),
        pytest.param(1, busy(80), line(), ALIKE, (0, 160), id="longer than any that we know"),
        pytest.param(
            1,
            busy(0),
            line(own=1, others=1),
            samples(10, 10, 10) + samples(*[50] * 97, repository="reef/tide"),
            (10 + 10 + 39.6, 10 + 10 + 60.3),
            id="each by its own repository, where there is enough to go by",
        ),
        pytest.param(1, busy(0, 30), line(), ALIKE, (60, 60), id="more run than may: it waits for both"),
    ],
)
def test_when_a_job_may_start(
    slots: int,
    running: list[BusySlot],
    ahead: JobsAhead,
    recent: list[Sample],
    expected: tuple[float, float] | None,
) -> None:
    found = forecast(NOW, slots, running, ahead, recent)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.earliest - NOW, found.latest - NOW) == pytest.approx(expected, abs=1.5)


def test_with_few_jobs_of_a_repository_those_of_the_label_are_asked() -> None:
    few = samples(1, 2) + samples(50, 60, repository="reef/tide")
    assert durations(few, "acme/app") == [1, 2, 50, 60]
    assert durations([*few, *samples(3)], "acme/app") == [1, 2, 3]


def test_the_longer_the_line_the_narrower_the_range_in_proportion() -> None:
    recent = samples(*range(10, 110))
    short, long = (forecast(NOW, 1, busy(0), line(own=ahead), recent) for ahead in (1, 400))
    assert short is not None
    assert long is not None
    assert (long.latest - NOW) / (long.earliest - NOW) < (short.latest - NOW) / (short.earliest - NOW)
    assert long.latest - NOW == pytest.approx(400 * 60, rel=0.15)


@given(
    slots=st.integers(1, 8),
    running=st.lists(st.floats(0, 500), max_size=10),
    own=st.integers(0, 50),
    others=st.integers(0, 50),
    seconds=st.lists(st.floats(0.01, 5000), max_size=40),
)
def test_a_range_is_a_range_and_begins_not_before_now(
    slots: int, running: list[float], own: int, others: int, seconds: list[float]
) -> None:
    found = forecast(NOW, slots, busy(*running), line(own, others), samples(*seconds))
    if found is not None:
        assert NOW <= found.earliest <= found.latest


WORLDS: Mapping[str, Callable[[random.Random], float]] = {
    "alike": lambda rng: rng.gauss(60, 3),
    "unlike": lambda rng: rng.lognormvariate(4.0, 0.5),
    "very unlike": lambda rng: rng.lognormvariate(4.0, 1.0),
    "without a memory": lambda rng: rng.expovariate(1 / 60),
    "short and long": lambda rng: rng.uniform(8, 12) if rng.random() < 0.5 else rng.uniform(200, 300),
}


@pytest.mark.parametrize(
    ("world", "known"),
    # Of two kinds of jobs fewer than five known ones may all be of the same: no range helps against that.
    [
        (world, known)
        for world in WORLDS
        for known in (2, 3, 5, 10, 30, 100)
        if known >= 5 or "short" not in world
    ],
)
def test_eight_of_ten_jobs_start_within_the_range_they_were_given_however_few_are_known(
    world: str, known: int
) -> None:
    """A world of jobs that last as those before them did, played to the end many times."""
    rng, lasts = random.Random(20), WORLDS[world]
    within, rounds = 0, 250
    for _ in range(rounds):
        recent = [Sample(repository="acme/app", seconds=lasts(rng)) for _ in range(known)]
        slots, ahead = rng.randint(1, 6), rng.randint(0, 30)
        lives = [lasts(rng) for _ in range(slots)]
        for_seconds = [life * rng.random() for life in lives]
        found = forecast(NOW, slots, busy(*for_seconds), line(own=ahead), recent)
        assert found is not None
        free = sorted(life - been for life, been in zip(lives, for_seconds, strict=True))
        for _ in range(ahead):
            free = sorted([free[0] + lasts(rng), *free[1:]])
        within += check_forecast(found, NOW + free[0]).accuracy is ForecastAccuracy.WITHIN
    assert within >= 0.8 * rounds, f"{within} of {rounds}"
