"""The governor: how its setting is read, and which resource it names."""

import pytest

from solstice_orchestrator.scheduling.governor import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MachineLimits,
    Resource,
    SensorReading,
    StartRefusal,
    out_of_patience,
    parse_limits,
    pause_seconds,
    refusal,
    startable,
)
from solstice_orchestrator.settings import OrchestratorSettings

USUAL = parse_limits(OrchestratorSettings.model_fields["governor"].default)
WELL = SensorReading(processors=4, load=10.0, disk_free=5.0, memory_available=5.0)


def test_the_usual_limits() -> None:
    assert MachineLimits(load=2.5, disk=5.0, memory=5.0, starting=4.0) == USUAL


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is not RESOURCE=LIMIT"),
        ("load", "is not RESOURCE=LIMIT"),
        ("heat=3", "is not RESOURCE=LIMIT"),
        ("load=5%", "is not RESOURCE=LIMIT"),
        ("disk=5", "is not RESOURCE=LIMIT"),
        ("load=1,load=2", "twice"),
        ("load=0", "refuse every job"),
        ("disk=100%", "refuse every job"),
        ("machine=1", "is not RESOURCE=LIMIT"),
    ],
)
def test_mistakes_are_reported(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_limits(text)


@pytest.mark.parametrize(
    ("reading", "starting", "resource", "detail"),
    [
        (WELL, 15, None, ""),
        (
            SensorReading(processors=4, load=10.1),
            0,
            Resource.LOAD,
            "the load is 10.1, more than 2.5 for each of 4",
        ),
        (
            SensorReading(disk_free=4.9),
            0,
            Resource.DISK,
            "4.9 % of the workspaces' disk is free, less than 5 %",
        ),
        (SensorReading(memory_available=0.4), 0, Resource.MEMORY, "0.4 % of the memory is available"),
        (WELL, 16, Resource.STARTING, "16 jobs are being checked out"),
        (SensorReading(load=99.0, disk_free=1.0, memory_available=1.0), 99, Resource.DISK, "disk"),
        (SensorReading(), 0, None, ""),
    ],
    ids=["all at their limits", "load", "disk", "memory", "starting", "several: the first", "no sensors"],
)
def test_the_resource_that_refuses_is_named(
    reading: SensorReading, starting: int, resource: Resource | None, detail: str
) -> None:
    found = refusal(USUAL, reading, starting)
    assert (found and found.resource) == resource
    assert detail in (found.detail if found else "")


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (" load=0.5 , disk=99.9% ", MachineLimits(load=0.5, disk=99.9)),
        ("load=150,memory=0%", MachineLimits(load=150.0, memory=0.0)),
    ],
)
def test_limits_are_read_as_they_are_written(text: str, limits: MachineLimits) -> None:
    assert parse_limits(text) == limits


@pytest.mark.parametrize(
    ("failures", "ceiling"),
    [
        (0, FIRST_PAUSE_SECONDS),
        (1, FIRST_PAUSE_SECONDS),
        (2, 2 * FIRST_PAUSE_SECONDS),
        (5, 16 * FIRST_PAUSE_SECONDS),
        (7, LONGEST_PAUSE_SECONDS),
        (10_000, LONGEST_PAUSE_SECONDS),
    ],
)
def test_a_pause_doubles_up_to_two_minutes_and_is_at_least_half_of_that(
    failures: int, ceiling: float
) -> None:
    assert [pause_seconds(failures, jitter) for jitter in (0.0, 0.5, 1.0)] == [
        ceiling / 2,
        ceiling * 3 / 4,
        ceiling,
    ]


def test_off_refuses_nothing() -> None:
    limits = parse_limits("off")
    assert limits == MachineLimits()
    assert refusal(limits, SensorReading(load=1e6, disk_free=0.0, memory_available=0.0), 10**6) is None
    assert startable(limits, 1, 10**6) is None


@pytest.mark.parametrize(
    ("resource", "waited", "patience", "lets_one"),
    [
        (Resource.LOAD, 299.9, 300.0, False),
        (Resource.LOAD, 300.0, 300.0, True),
        (Resource.LOAD, 1e9, 0.0, False),
        (Resource.DISK, 1e9, 300.0, False),
        (Resource.MEMORY, 1e9, 300.0, False),
        (Resource.STARTING, 1e9, 300.0, False),
    ],
)
def test_only_load_loses_to_patience(
    resource: Resource, waited: float, patience: float, lets_one: bool
) -> None:
    assert out_of_patience(StartRefusal(resource=resource, detail=""), waited, patience) is lets_one


@pytest.mark.parametrize(("processors", "starting", "more"), [(1, 0, 1), (8, 3, 1), (8, 4, 0)])
def test_the_smallest_machine_may_start_one(processors: int, starting: int, more: int) -> None:
    assert startable(MachineLimits(starting=0.5), processors, starting) == more
