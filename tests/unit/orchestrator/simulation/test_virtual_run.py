"""A simulated trace has the waits of calculation and queueing theory, and reports them."""

import math
import random
import statistics
from collections.abc import Iterator
from itertools import accumulate

import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.simulation.report import report
from solstice_orchestrator.simulation.tally import SimulationTally
from solstice_orchestrator.simulation.trace import TraceGroup, TraceRun
from solstice_orchestrator.simulation.virtual_run import simulate_trace
from tests.traces import configuration, named, one_by_one, random_trace, simulated_starts, trace_job

QUEUE = TraceGroup(group="deploy")
CANCEL = TraceGroup(group="deploy", mode=GroupMode.CANCEL)


def test_a_free_slot_is_taken_at_once_and_a_busy_one_when_it_is_free() -> None:
    trace = one_by_one(named("a", 1.0), named("b", 2.0, 5.0), named("c", 100.0))
    assert simulated_starts(trace, configuration()).at == {"a": 1.0, "b": 11.0, "c": 100.0}


def test_what_ends_now_makes_room_for_what_comes_now() -> None:
    assert simulated_starts(one_by_one(named("a"), named("b", 10.0)), configuration()).at == {
        "a": 0.0,
        "b": 10.0,
    }


def test_jobs_that_take_no_time_are_done_at_once() -> None:
    trace = one_by_one(*(named(str(number), 1.0, 0.0) for number in range(5)))
    assert set(simulated_starts(trace, configuration()).at.values()) == {1.0}


def test_more_urgent_jobs_go_first_until_one_is_overdue() -> None:
    trace = one_by_one(
        named("a"),
        named("low", 1.0, priority=Priority.LOW),
        *(named(f"high-{number}", 2.0, priority=Priority.HIGH) for number in range(4)),
    )
    assert list(simulated_starts(trace, configuration()).at)[-1] == "low"
    # Overdue after 21 s: at 30 s, behind two of the four.
    assert simulated_starts(trace, configuration(max_wait=20.0)).at["low"] == 30.0


def test_repositories_take_turns() -> None:
    many = [named(f"many-{number}") for number in range(5)]
    few = [named(f"few-{number}", repository="reef/tide") for number in range(2)]
    at = simulated_starts(one_by_one(*many, *few), configuration()).at
    assert list(at) == ["many-0", "few-0", "many-1", "few-1", "many-2", "many-3", "many-4"]


def test_the_limit_over_all_labels_holds() -> None:
    trace = one_by_one(*(named(label, label=label) for label in ("linux", "illumos", "plan9")))
    at = simulated_starts(trace, configuration(1, limit=2, illumos=1, plan9=1)).at
    assert sorted(at.values()) == [0.0, 0.0, 10.0]


def test_a_cap_leaves_slots_to_others() -> None:
    own = [named(f"own-{number}") for number in range(3)]
    other = named("other", 1.0, repository="reef/tide")
    at = simulated_starts(one_by_one(*own, other), configuration(3, caps="acme/app=1")).at
    assert at == {"own-0": 0.0, "other": 1.0, "own-1": 10.0, "own-2": 20.0}


@pytest.mark.parametrize("caps", ["acme/app=0", "*=0,reef/tide=1"])
def test_an_owner_that_may_run_nothing_delays_no_other_and_is_counted(caps: str) -> None:
    trace = one_by_one(named("never"), named("other", 1.0, repository="reef/tide"))
    tally = simulated_starts(trace, configuration(caps=caps))
    assert tally.at == {"other": 1.0}
    assert report(tally, configuration().capacity).never_started == 1


def test_needs_are_waited_for_and_that_is_no_wait_for_a_slot() -> None:
    run = [
        named("build", run="r"),
        named("test", run="r", needs=("build",)),
        named("ship", run="r", needs=("build", "test")),
    ]
    tally = simulated_starts([run], configuration(3))
    assert tally.at == {"build": 0.0, "test": 10.0, "ship": 20.0}
    assert list(tally.waits["linux", Priority.DEFAULT]) == [0.0, 0.0, 0.0]


def test_what_needs_a_job_of_a_label_without_slots_never_starts() -> None:
    run = [named("build", run="r", label="plan9"), named("test", run="r", needs=("build",))]
    tally = simulated_starts([run], configuration())
    assert tally.at == {}
    assert report(tally, configuration().capacity).never_started == 2


def test_one_of_a_group_runs_at_a_time() -> None:
    trace = one_by_one(
        *(named(str(number), float(number), concurrency=QUEUE) for number in range(3)),
        named("elsewhere", 2.0, repository="reef/tide", concurrency=QUEUE),
    )
    assert simulated_starts(trace, configuration(9)).at == {
        "0": 0.0,
        "elsewhere": 2.0,
        "1": 10.0,
        "2": 20.0,
    }


def test_a_run_has_its_group_from_its_first_job_to_its_last() -> None:
    def run(name: str, at: float) -> TraceRun:
        return [
            named(f"{name}-build", at, run=name, run_concurrency=QUEUE),
            named(f"{name}-ship", at, run=name, needs=(f"{name}-build",), run_concurrency=QUEUE),
        ]

    assert simulated_starts([run("a", 0.0), run("b", 1.0)], configuration(9)).at == {
        "a-build": 0.0,
        "a-ship": 10.0,
        "b-build": 20.0,
        "b-ship": 30.0,
    }


def test_a_newer_one_that_cancels_ends_what_runs_and_what_waits() -> None:
    trace = one_by_one(*(named(str(number), float(number), 100.0, concurrency=CANCEL) for number in range(3)))
    tally = simulated_starts(trace, configuration(9))
    assert tally.at == {"0": 0.0, "1": 1.0, "2": 2.0}
    assert tally.busy_seconds["linux"] == 1.0 + 1.0 + 100.0


def test_a_run_that_is_superseded_while_it_waits_never_starts() -> None:
    trace = [
        [named("busy", 0.0, 50.0)],
        [
            named("a", 1.0, run="r", run_concurrency=CANCEL),
            named("b", 1.0, run="r", run_concurrency=CANCEL),
        ],
        [named("c", 2.0, run_concurrency=CANCEL)],
    ]
    tally = simulated_starts(trace, configuration())
    assert tally.at == {"busy": 0.0, "c": 50.0}
    reported = report(tally, configuration().capacity)
    assert (reported.jobs, reported.superseded, reported.never_started) == (4, 2, 0)


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_is_used_twice_and_every_job_runs_once(seed: int) -> None:
    trace = random_trace(random.Random(seed), 200, labels=("linux", "illumos"))
    tried = configuration(3, illumos=2, caps="*=4")
    at = simulated_starts(trace, tried).at
    jobs = [job for run in trace for job in run]
    assert sorted(at) == sorted(job.name for job in jobs)
    for label, slots in tried.capacity.slots.items():
        of_label = [job for job in jobs if job.label == label]
        changes = sorted(
            [(at[job.name], 1) for job in of_label] + [(at[job.name] + job.seconds, -1) for job in of_label]
        )
        # At one moment ends stand before starts.
        assert max(accumulate(change for _, change in changes)) <= slots
    for job in jobs:
        assert at[job.name] >= job.at


@pytest.mark.parametrize("slots", [1, 3])
def test_waits_are_those_of_queueing_theory(slots: int) -> None:
    """M/M/c with one class and repository: the mean wait is by Erlang's C formula."""
    rng, load = random.Random(1), 0.7

    def trace() -> Iterator[TraceRun]:
        at = 0.0
        for _ in range(60_000):
            at += rng.expovariate(slots * load)
            yield [trace_job(at, rng.expovariate(1.0))]

    tally = SimulationTally()
    simulate_trace(trace(), configuration(slots), tally)
    offered = slots * load
    queued = offered**slots / math.factorial(slots) / (1 - load)
    all_busy = queued / (sum(offered**n / math.factorial(n) for n in range(slots)) + queued)
    expected = all_busy / (slots - offered)
    assert statistics.fmean(tally.waits["linux", Priority.DEFAULT]) == pytest.approx(expected, rel=0.1)
    (use,) = report(tally, configuration(slots).capacity).labels
    assert use.utilisation == pytest.approx(load, rel=0.03)
