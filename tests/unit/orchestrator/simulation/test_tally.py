"""The speed of jobs: how much of their time they did not wait."""

import pytest

from solstice_orchestrator.simulation.tally import SHORT_SECONDS, SimulationTally
from tests.traces import trace_job


@pytest.mark.parametrize(
    ("waited", "ran", "speed"),
    [
        pytest.param(0.0, 20.0, 1.0, id="without a wait"),
        pytest.param(0.0, 0.0, 1.0, id="without a wait or any time"),
        pytest.param(20.0, 20.0, 0.5, id="waited as long as it ran"),
        pytest.param(30.0, 10.0, 0.25, id="waited three times as long"),
        pytest.param(39.0, 1.0, SHORT_SECONDS / 40.0, id="a short one counts as ten seconds"),
        pytest.param(5.0, 1.0, 1.0, id="a short wait of a short one does not matter"),
    ],
)
def test_a_job_s_speed_is_the_share_of_its_time_that_it_ran(waited: float, ran: float, speed: float) -> None:
    tally = SimulationTally()
    tally.ended(trace_job(), waited, ran, 100.0)
    assert tally.of_repositories()["acme/app"].mean == speed
    assert (tally.busy_seconds["linux"], tally.ended_at) == (ran, 100.0)


def test_a_repository_s_speed_is_the_mean_over_its_jobs_of_all_labels() -> None:
    tally = SimulationTally()
    for label, waited in (("linux", 0.0), ("linux", 20.0), ("illumos", 60.0)):
        tally.ended(trace_job(label=label), waited, 20.0, 100.0)
    tally.ended(trace_job(repository="reef/tide"), 20.0, 20.0, 100.0)
    speeds = {name: (each.count, each.mean) for name, each in tally.of_repositories().items()}
    assert speeds == {"acme/app": (3, pytest.approx((1 + 0.5 + 0.25) / 3)), "reef/tide": (1, 0.5)}


def test_a_line_is_as_long_as_it_ever_was() -> None:
    tally = SimulationTally()
    for count in (1, 3, 2):
        tally.waiting("linux", count)
    assert tally.longest_line == {"linux": 3}


def test_a_trace_begins_with_its_first_run() -> None:
    tally = SimulationTally()
    tally.count_arrival([trace_job(3.0), trace_job(3.0, label="illumos")])
    tally.count_arrival([trace_job(5.0)])
    assert (tally.began_at, tally.jobs) == (3.0, {"linux": 2, "illumos": 1})
