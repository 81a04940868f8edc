"""Forecasts of starts, from the durations of past jobs."""

import math
import random
from collections.abc import Callable, Mapping
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.queue_times.forecast import (
    BusySlot,
    Forecast,
    ForecastAccuracy,
    JobsAhead,
    Sample,
    check_forecast,
    durations,
    forecast_slot,
    remaining,
    remaining_range,
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
    found = forecast_slot(NOW, slots, running, ahead, recent)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.earliest - NOW, found.latest - NOW) == pytest.approx(expected, abs=1.5)


def test_with_few_jobs_of_a_repository_those_of_the_label_are_asked() -> None:
    few = samples(1, 2) + samples(50, 60, repository="reef/tide")
    assert durations(few, "acme/app") == [1, 2, 50, 60]
    assert durations([*few, *samples(3)], "acme/app") == [1, 2, 3]


@pytest.mark.parametrize(
    ("started_at", "accuracy", "error"),
    [
        (1098.0, ForecastAccuracy.EARLY, 2.0),
        (1099.0, ForecastAccuracy.WITHIN, 0.0),
        (1150.0, ForecastAccuracy.WITHIN, 0.0),
        (1201.0, ForecastAccuracy.WITHIN, 0.0),
        (1202.0, ForecastAccuracy.LATE, 2.0),
    ],
)
def test_a_forecast_is_checked_except_for_the_second_that_clocks_differ(
    started_at: float, accuracy: ForecastAccuracy, error: float
) -> None:
    found = check_forecast(Forecast(earliest=1100.0, latest=1200.0), started_at)
    assert (found.accuracy, found.error_seconds) == (accuracy, error)


@pytest.mark.parametrize(
    ("count", "student"),
    [(2, 3.078), (3, 1.886), (4, 1.638), (6, 1.476), (11, 1.372), (31, 1.310)],
)
def test_the_range_of_one_job_is_the_prediction_interval_of_so_few(count: int, student: float) -> None:
    """The 90th percentiles of Student's t are those of a printed table."""
    logs = [4.0 + (-1.0) ** number for number in range(count)]
    found = remaining_range("acme/app", 0.0, samples(*map(math.exp, logs)))
    assert found is not None
    below, above = (math.log(each) - fmean(logs) for each in found)
    assert below == pytest.approx(-above)
    assert 0.99 <= above / (student * stdev(logs) * math.sqrt(1 + 1 / count)) <= 1.07


def test_the_range_of_one_job_is_no_narrower_than_what_was_seen() -> None:
    """Most jobs are alike and few differ much: the logarithms' deviation misses those."""
    long = remaining_range("acme/app", 0.0, samples(*[1.0] * 80, *[1000.0] * 10, *[2000.0] * 10))
    short = remaining_range("acme/app", 0.0, samples(*[0.0005] * 10, *[0.001] * 10, *[1.0] * 80))
    assert long is not None
    assert short is not None
    # The percentiles lie between the two nearest.
    assert (short[0], long[1]) == pytest.approx((0.00095, 1100.0))


def test_a_single_recent_job_says_little() -> None:
    assert remaining_range("acme/app", 0.0, samples(60)) == (12.0, 300.0)
    assert remaining_range("acme/app", 20.0, samples(60)) == (0.0, 280.0)


def test_without_recent_jobs_nothing_is_known_of_how_long_one_takes() -> None:
    assert remaining_range("acme/app", 20.0, []) is None


def test_beyond_all_recent_jobs_of_its_own_those_of_the_label_are_asked() -> None:
    recent = samples(60, 60, 60) + samples(100, 100, repository="reef/tide")
    assert remaining_range("acme/app", 70.0, recent) == pytest.approx((30.0, 30.0))
    assert remaining_range("acme/app", 100.0, recent) == (0.0, 200.0)
    assert remaining(busy(70)[0], recent) == 30.0
    assert remaining(busy(100)[0], recent) == 0.0


def test_what_is_left_is_the_average_of_those_that_ran_longer() -> None:
    assert remaining(busy(15)[0], samples(10, 20, 40)) == 15.0
    assert remaining(busy(20)[0], samples(10, 20, 40)) == 20.0


def test_jobs_that_took_no_time_have_a_range_too() -> None:
    assert remaining_range("acme/app", 0.0, samples(0.0, 0.0, 5.0)) is not None
    found = forecast_slot(NOW, 1, busy(0), line(own=1), samples(0.0, 0.0, 0.0))
    assert found is not None


def test_the_same_facts_give_the_same_forecast() -> None:
    recent = samples(10, 20, 70) + samples(5, repository="b/b")
    one, other = (forecast_slot(NOW, 2, busy(5, 200), line(own=3, others=4), recent) for _ in range(2))
    assert one == other


def test_own_jobs_ahead_last_as_the_own_ones_did_and_others_as_all_did() -> None:
    recent = samples(*[10] * 5) + samples(*[100] * 5, repository="reef/tide")
    own, others = (forecast_slot(NOW, 1, [], ahead, recent) for ahead in (line(own=9), line(others=9)))
    assert own == Forecast(earliest=NOW + 90, latest=NOW + 90)
    assert others is not None
    assert others.earliest > NOW + 90
    assert others.earliest < NOW + 9 * 55 < others.latest


def test_the_longer_the_line_the_narrower_the_range_in_proportion() -> None:
    recent = samples(*range(10, 110))
    short, long = (forecast_slot(NOW, 1, busy(0), line(own=ahead), recent) for ahead in (1, 400))
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
    found = forecast_slot(NOW, slots, busy(*running), line(own, others), samples(*seconds))
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
    """Jobs last as those before them did; the queue is simulated many times."""
    rng, lasts = random.Random(20), WORLDS[world]
    within, rounds = 0, 250
    for _ in range(rounds):
        recent = [Sample(repository="acme/app", seconds=lasts(rng)) for _ in range(known)]
        slots, ahead = rng.randint(1, 6), rng.randint(0, 30)
        lives = [lasts(rng) for _ in range(slots)]
        for_seconds = [life * rng.random() for life in lives]
        found = forecast_slot(NOW, slots, busy(*for_seconds), line(own=ahead), recent)
        assert found is not None
        free = sorted(life - been for life, been in zip(lives, for_seconds, strict=True))
        for _ in range(ahead):
            free = sorted([free[0] + lasts(rng), *free[1:]])
        within += check_forecast(found, NOW + free[0]).accuracy is ForecastAccuracy.WITHIN
    assert within >= 0.8 * rounds, f"{within} of {rounds}"


def test_jobs_that_take_less_than_a_second_keep_their_range() -> None:
    left = remaining_range("acme/app", 0.0, samples(0.1, 0.2, 0.3))
    assert left is not None
    assert 0.0 < left[0] < 0.1
    assert 0.3 < left[1] < 1.0
