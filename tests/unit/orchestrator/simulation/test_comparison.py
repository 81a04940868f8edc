"""The effect of one more slot."""

import random

import pytest

from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.simulation.comparison import with_extra_slot
from solstice_orchestrator.simulation.report import report
from solstice_orchestrator.simulation.virtual_run import SimulationConfig
from tests.traces import configuration, named, one_by_one, random_trace, simulated_starts


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(configuration(2, illumos=1), id="labels apart"),
        pytest.param(configuration(2, illumos=1, caps="*=2"), id="caps"),
        pytest.param(configuration(2, limit=2, illumos=1), id="a limit over all"),
    ],
)
@pytest.mark.parametrize("entangled", [True, False])
def test_one_slot_more_is_what_playing_it_so_gives(tried: SimulationConfig, entangled: bool) -> None:
    trace = random_trace(random.Random(1), 150, labels=("linux", "illumos"), entangled=entangled)
    before = simulated_starts(trace, tried)
    change = with_extra_slot(lambda: trace, tried, before, "linux")
    limit = 2 if tried.capacity.limit == 2 else 0
    more = SimulationConfig(
        capacity=capacity({"linux": 3, "illumos": 1}, limit),
        limits=tried.limits,
        max_wait_seconds=tried.max_wait_seconds,
    )
    then = simulated_starts(trace, more)
    assert change is not None
    assert (change.label, change.slots) == ("linux", 3)
    (now_all,) = [
        each.waits
        for each in report(before, tried.capacity).waits
        if (each.label, each.priority) == ("linux", None)
    ]
    (then_all,) = [
        each.waits
        for each in report(then, more.capacity).waits
        if (each.label, each.priority) == ("linux", None)
    ]
    assert (change.before, change.after) == (now_all, then_all)


def test_unwanted_label_has_no_demand() -> None:
    tried, trace = configuration(1, illumos=1), one_by_one(named("a"))
    assert with_extra_slot(lambda: trace, tried, simulated_starts(trace, tried), "illumos") is None
