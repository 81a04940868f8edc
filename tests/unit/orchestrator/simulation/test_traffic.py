"""Generated traffic has the requested parameters."""

import functools
import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from solstice_orchestrator.simulation.trace import (
    TraceJob,
    encode,
    read_runs,
)
from solstice_orchestrator.simulation.traffic import CLASSES, HOUR, RUN_SIZES, Traffic, busy, generate


def read(*lines: bytes) -> list[Sequence[TraceJob]]:
    return list(read_runs(lines, "generated.jsonl"))


WEEK = Traffic(
    jobs=20_000,
    repositories=500,
    over_seconds=7 * 24 * HOUR,
    labels={"linux": 3, "illumos": 1},
    chained=0.5,
)


@functools.cache
def week() -> Sequence[TraceJob]:
    return list(generate(WEEK, random.Random(1)))


def runs_of(traffic: Traffic) -> Sequence[Sequence[TraceJob]]:
    return read(*map(encode, generate(traffic, random.Random(1))))


def test_there_are_as_many_as_were_asked_for_in_order_and_in_time() -> None:
    assert len(week()) == WEEK.jobs
    assert [each.at for each in week()] == sorted(each.at for each in week())
    assert week()[-1].at <= WEEK.over_seconds


def test_it_is_a_trace() -> None:
    assert [each for run in read(*map(encode, week())) for each in run] == week()


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    assert list(generate(WEEK, random.Random(1))) == week()
    assert list(generate(WEEK, random.Random(2))) != week()


def test_few_repositories_send_most() -> None:
    """Zipf: the first sends about ten times the tenth, here to the power 1.1."""
    counts = Counter(each.repository for each in week())
    assert counts["owner/repository-1"] / counts["owner/repository-10"] == pytest.approx(10**1.1, rel=0.3)


def test_labels_get_their_shares() -> None:
    assert Counter(each.label for each in week())["linux"] / len(week()) == pytest.approx(0.75, abs=0.02)


def test_half_of_the_jobs_take_less_than_the_median() -> None:
    assert sum(each.seconds < 60.0 for each in week()) / len(week()) == pytest.approx(0.5, abs=0.02)


def test_nights_and_weekends_are_quiet() -> None:
    per_hour = Counter(int(each.at // HOUR) for each in week())
    assert per_hour[14] > 3 * per_hour[2]
    assert sum(per_hour[hour] for hour in range(24)) > 3 * sum(per_hour[5 * 24 + hour] for hour in range(24))
    assert busy(14) == max(map(busy, range(7 * 24)))


@pytest.mark.parametrize("over_seconds", [0.5, 60.0, HOUR, 36 * HOUR])
def test_any_time_is_filled(over_seconds: float) -> None:
    traffic = Traffic(jobs=2000, repositories=3, over_seconds=over_seconds, labels={"linux": 1})
    times = [each.at for each in generate(traffic, random.Random(1))]
    assert 0.8 * over_seconds < max(times) <= over_seconds


@pytest.mark.parametrize(("chained", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_in_so_many_runs_each_job_needs_the_one_before(chained: float, share: float) -> None:
    runs = runs_of(
        Traffic(jobs=4000, repositories=9, over_seconds=60.0, labels={"linux": 1}, chained=chained)
    )
    several = [run for run in runs if len(run) > 1]
    chains = [run for run in several if run[0].name]
    assert len(chains) / len(several) == pytest.approx(share, abs=0.05)
    for run in chains:
        assert [job.needs for job in run] == [(), *((job.name,) for job in run[:-1])]
    for run in runs:
        assert run in chains or not any(job.name or job.needs for job in run)
        assert len(run) > 1 or not run[0].run


def test_runs_have_up_to_five_jobs_of_one_repository_and_class() -> None:
    runs = runs_of(WEEK)
    assert {len(run) for run in runs} == set(RUN_SIZES)
    assert all(len({(job.repository, job.priority, job.at) for job in run}) == 1 for run in runs)


def test_repositories_are_given_to_the_owners_in_turn() -> None:
    traffic = Traffic(jobs=500, repositories=4, over_seconds=60.0, labels={"linux": 1}, owners=3)
    assert {each.repository for each in generate(traffic, random.Random(1))} == {
        "owner-1/repository-1",
        "owner-2/repository-2",
        "owner-3/repository-3",
        "owner-1/repository-4",
    }


def test_few_jobs_are_urgent() -> None:
    counts = Counter(run[0].priority for run in runs_of(WEEK))
    for priority, share in CLASSES.items():
        assert counts[priority] / counts.total() == pytest.approx(share, abs=0.01)


def test_one_job_in_six_takes_over_e_times_the_median() -> None:
    assert sum(each.seconds > 60.0 * math.e for each in week()) / len(week()) == pytest.approx(
        0.159, abs=0.015
    )
