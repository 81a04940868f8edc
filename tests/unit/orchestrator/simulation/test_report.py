"""A report's figures about waits, slots and repositories."""

from array import array
from collections.abc import Sequence

import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.simulation.report import jain, percentile, report
from solstice_orchestrator.simulation.trace import TraceGroup, TraceRun
from tests.traces import configuration, named, one_by_one, simulated_starts

QUEUE = TraceGroup(group="deploy")


def test_it_reports_waits_slots_and_repositories() -> None:
    trace = one_by_one(
        named("a"),
        named("b", 0.0, 10.0, repository="reef/tide", priority=Priority.LOW),
        named("c", 0.0, label="plan9"),
    )
    tried = configuration(1, illumos=2)
    reported = report(simulated_starts(trace, tried), tried.capacity)
    assert [(each.label, each.priority, each.waits.jobs, each.waits.max) for each in reported.waits] == [
        ("linux", Priority.DEFAULT, 1, 0.0),
        ("linux", Priority.LOW, 1, 10.0),
        ("linux", None, 2, 10.0),
    ]
    assert [
        (use.label, use.slots, use.jobs, use.utilisation, use.longest_line) for use in reported.labels
    ] == [
        ("illumos", 2, 0, 0.0, 0),
        ("linux", 1, 2, 1.0, 1),
        ("plan9", 0, 1, 0.0, 0),
    ]
    assert (reported.jobs, reported.never_started, reported.span_seconds) == (3, 1, 20.0)
    assert reported.fairness is not None
    # One ran at once, the other waited as long as it ran: speeds 1 and 1/2.
    assert reported.fairness.jain == pytest.approx(1.5**2 / (2 * 1.25))
    assert (reported.fairness.slowest, reported.fairness.slowest_speed) == ("reef/tide", 0.5)


def test_each_label_is_reported_with_its_own_classes() -> None:
    trace = one_by_one(named("a", priority=Priority.LOW), named("b", label="illumos"))
    tried = configuration(1, illumos=1)
    answered = report(simulated_starts(trace, tried), tried.capacity)
    assert [(each.label, each.priority) for each in answered.waits] == [
        ("illumos", Priority.DEFAULT),
        ("illumos", None),
        ("linux", Priority.LOW),
        ("linux", None),
    ]


def test_percentiles_of_ten_waits_are_reported() -> None:
    trace = one_by_one(*(named(str(number), seconds=1.0) for number in range(10)))
    (of_class, _) = report(simulated_starts(trace, configuration()), configuration().capacity).waits
    waits = of_class.waits
    assert (waits.mean, waits.p50, waits.p90, waits.p99, waits.max) == (4.5, 4.0, 8.0, 9.0, 9.0)


def test_runs_with_needs_or_groups_entangle_labels_and_plain_ones_do_not() -> None:
    needs = [named("a", run="r"), named("b", run="r", needs=("a",))]
    assert not simulated_starts(one_by_one(named("a")), configuration()).entangled
    assert simulated_starts([needs], configuration()).entangled
    assert simulated_starts(one_by_one(named("a", concurrency=QUEUE)), configuration()).entangled
    assert simulated_starts(one_by_one(named("a", run_concurrency=QUEUE)), configuration()).entangled


@pytest.mark.parametrize(
    "trace", [[], one_by_one(named("a", 5.0, label="plan9"))], ids=["empty", "nothing ran"]
)
def test_a_trace_in_which_nothing_runs_is_reported_too(trace: Sequence[TraceRun]) -> None:
    reported = report(simulated_starts(trace, configuration()), configuration().capacity)
    assert (reported.waits, reported.fairness, reported.span_seconds) == ([], None, 0.0)


@pytest.mark.parametrize(
    ("shares", "index"), [([3.0, 3.0, 3.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 2.0], 0.9)]
)
def test_jain_s_index(shares: list[float], index: float) -> None:
    assert jain(shares) == pytest.approx(index)


@pytest.mark.parametrize(("share", "value"), [(0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (0.0, 1.0), (1.0, 10.0)])
def test_percentiles_are_values_that_were_there(share: float, value: float) -> None:
    assert percentile(array("d", [float(number) for number in range(1, 11)]), share) == value
