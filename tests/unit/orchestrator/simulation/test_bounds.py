"""Quotas, rates and slots of owners in virtual time."""

import random

import pytest

from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.virtual_run import SimulationConfig
from tests.traces import configuration, named, one_by_one, random_trace, simulated_starts


def bounded(
    *, owners: str = "", hourly: str = "", labels: str = "", repositories: str = ""
) -> SimulationConfig:
    limits = StartLimits(
        quotas=Quotas(slots=parse_caps(owners), starts_per_hour=parse_caps(hourly)),
        rates=StartRates(labels=parse_rates(labels), repositories=parse_rates(repositories)),
    )
    return SimulationConfig(capacity=capacity({"linux": 50}, 0), limits=limits, max_wait_seconds=1e9)


def test_an_owner_starts_no_more_until_the_hour_is_over() -> None:
    trace = one_by_one(
        named("a", 0.0, repository="acme/app"),
        named("b", 10.0, repository="acme/docs"),
        named("c", 20.0, repository="acme/app"),
        named("d", 30.0, repository="reef/tide"),
        named("e", 40.0, repository="acme/app"),
    )
    at = simulated_starts(trace, bounded(hourly="acme=2")).at
    # The first counts for just an hour, the second to the next full minute.
    assert at == {"a": 0.0, "b": 10.0, "d": 30.0, "c": 3600.0, "e": 3660.0}


def test_starts_of_one_minute_are_counted_together() -> None:
    trace = one_by_one(*(named(str(number), 10.0 * number) for number in range(1, 6)))
    at = simulated_starts(trace, bounded(hourly="acme=4")).at
    assert at == {"1": 10.0, "2": 20.0, "3": 30.0, "4": 40.0, "5": 3660.0}


def test_an_owner_s_repositories_share_its_slots() -> None:
    trace = one_by_one(
        named("a", 0.0, repository="acme/app"),
        named("b", 1.0, repository="acme/docs"),
        named("c", 2.0, repository="reef/tide"),
    )
    assert simulated_starts(trace, bounded(owners="acme=1")).at == {"a": 0.0, "c": 2.0, "b": 10.0}


def test_a_repository_has_no_more_slots_than_its_cap_however_many_of_its_jobs_have_ended() -> None:
    trace = one_by_one(*(named(str(number)) for number in range(5)))
    at = simulated_starts(trace, configuration(9, caps="acme/app=2")).at
    assert sorted(at.values()) == [0.0, 0.0, 10.0, 10.0, 20.0]


def test_a_rate_lets_jobs_start_in_its_own_time() -> None:
    trace = one_by_one(*(named(f"job-{number}") for number in range(5)))
    at = simulated_starts(trace, bounded(labels="linux=450/h:2")).at
    assert sorted(at.values()) == [0.0, 0.0, 8.0, 16.0, 24.0]


def test_who_may_start_nothing_never_does() -> None:
    trace = one_by_one(named("a", repository="acme/app"), named("b", repository="reef/tide"))
    tally = simulated_starts(trace, bounded(hourly="acme=0"))
    assert tally.at == {"b": 0.0}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("text", "seconds", "most"),
    [
        ("7/m:3", 61.0, 3 + 8),
        ("1/s", 10.0, 1 + 10),
        ("333/h:1", 3600.0, 1 + 333),
        ("97/d:5", 900.0, 5 + 2),
    ],
)
def test_rates_that_no_float_holds_exactly_are_kept_and_used_up(
    text: str, seconds: float, most: int, seed: int
) -> None:
    """A token late by a rounding error neither stops the simulation nor is free."""
    trace = random_trace(random.Random(seed), 80, entangled=False)
    for tried in (bounded(labels=f"linux={text}"), bounded(repositories=f"*={text}")):
        at = simulated_starts(trace, tried).at
        assert len(at) == len(trace)
        if tried.limits.rates.labels.any:
            starts = sorted(at.values())
            for begin in starts:
                assert sum(begin <= each < begin + seconds for each in starts) <= most
