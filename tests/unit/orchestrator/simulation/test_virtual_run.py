"""A trace played in virtual time: waits that can be worked out by hand or by queueing theory, and what is told of them."""

import math
import random
import statistics
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.scheduling.capacity import capacity
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.comparison import with_extra_slot
from solstice_orchestrator.simulation.report import jain, percentile, report
from solstice_orchestrator.simulation.tally import Tally
from solstice_orchestrator.simulation.trace import TraceGroup, TraceJob, TraceRun
from solstice_orchestrator.simulation.virtual_run import SimulationConfig, simulate_trace
from tests.traces import one_by_one, random_trace, simulated_starts, trace_job

QUEUE = TraceGroup(group="deploy")
CANCEL = TraceGroup(group="deploy", mode=GroupMode.CANCEL)


def configuration(
    slots: int = 1, *, limit: int = 0, caps: str = "", max_wait: float = 1e9, **more: int
) -> SimulationConfig:
    return SimulationConfig(
        capacity=capacity({"linux": slots, **more}, limit),
        limits=StartLimits(caps=parse_caps(caps)),
        max_wait_seconds=max_wait,
    )


def named(name: str, at: float = 0.0, seconds: float = 10.0, **changes: Any) -> TraceJob:
    return trace_job(at, seconds, name=name, **changes)


class TestPlay:
    def test_a_free_slot_is_taken_at_once_and_a_busy_one_when_it_is_free(self) -> None:
        trace = one_by_one(named("a", 1.0), named("b", 2.0, 5.0), named("c", 100.0))
        assert simulated_starts(trace, configuration()).at == {"a": 1.0, "b": 11.0, "c": 100.0}

    def test_what_ends_now_makes_room_for_what_comes_now(self) -> None:
        assert simulated_starts(one_by_one(named("a"), named("b", 10.0)), configuration()).at == {
            "a": 0.0,
            "b": 10.0,
        }

    def test_jobs_that_take_no_time_are_done_at_once(self) -> None:
        trace = one_by_one(*(named(str(number), 1.0, 0.0) for number in range(5)))
        assert set(simulated_starts(trace, configuration()).at.values()) == {1.0}

    def test_the_more_urgent_go_first_until_somebody_is_overdue(self) -> None:
        trace = one_by_one(
            named("a"),
            named("low", 1.0, priority=Priority.LOW),
            *(named(f"high-{number}", 2.0, priority=Priority.HIGH) for number in range(4)),
        )
        assert list(simulated_starts(trace, configuration()).at)[-1] == "low"
        # Overdue after 21 s: at 30 s, behind two of the four.
        assert simulated_starts(trace, configuration(max_wait=20.0)).at["low"] == 30.0

    def test_repositories_take_turns(self) -> None:
        many = [named(f"many-{number}") for number in range(5)]
        few = [named(f"few-{number}", repository="reef/tide") for number in range(2)]
        at = simulated_starts(one_by_one(*many, *few), configuration()).at
        assert list(at) == ["many-0", "few-0", "many-1", "few-1", "many-2", "many-3", "many-4"]

    def test_the_limit_over_all_labels_holds(self) -> None:
        trace = one_by_one(*(named(label, label=label) for label in ("linux", "illumos", "plan9")))
        at = simulated_starts(trace, configuration(1, limit=2, illumos=1, plan9=1)).at
        assert sorted(at.values()) == [0.0, 0.0, 10.0]

    def test_a_cap_leaves_slots_to_others(self) -> None:
        own = [named(f"own-{number}") for number in range(3)]
        other = named("other", 1.0, repository="reef/tide")
        at = simulated_starts(one_by_one(*own, other), configuration(3, caps="acme/app=1")).at
        assert at == {"own-0": 0.0, "other": 1.0, "own-1": 10.0, "own-2": 20.0}

    @pytest.mark.parametrize("caps", ["acme/app=0", "*=0,reef/tide=1"])
    def test_who_may_run_nothing_holds_up_nobody_and_is_counted(self, caps: str) -> None:
        trace = one_by_one(named("never"), named("other", 1.0, repository="reef/tide"))
        tally = simulated_starts(trace, configuration(caps=caps))
        assert tally.at == {"other": 1.0}
        assert report(tally, configuration().capacity).never_started == 1

    def test_needs_are_waited_for_and_that_is_no_wait_for_a_slot(self) -> None:
        run = [
            named("build", run="r"),
            named("test", run="r", needs=("build",)),
            named("ship", run="r", needs=("build", "test")),
        ]
        tally = simulated_starts([run], configuration(3))
        assert tally.at == {"build": 0.0, "test": 10.0, "ship": 20.0}
        assert list(tally.waits["linux", Priority.DEFAULT]) == [0.0, 0.0, 0.0]

    def test_what_needs_a_job_of_a_label_without_slots_never_starts(self) -> None:
        run = [named("build", run="r", label="plan9"), named("test", run="r", needs=("build",))]
        tally = simulated_starts([run], configuration())
        assert tally.at == {}
        assert report(tally, configuration().capacity).never_started == 2

    def test_one_of_a_group_runs_at_a_time(self) -> None:
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

    def test_a_run_has_its_group_from_its_first_job_to_its_last(self) -> None:
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

    def test_a_newer_one_that_cancels_ends_what_runs_and_what_waits(self) -> None:
        trace = one_by_one(
            *(named(str(number), float(number), 100.0, concurrency=CANCEL) for number in range(3))
        )
        tally = simulated_starts(trace, configuration(9))
        assert tally.at == {"0": 0.0, "1": 1.0, "2": 2.0}
        assert tally.busy_seconds["linux"] == 1.0 + 1.0 + 100.0

    def test_a_run_that_is_superseded_while_it_waits_never_starts(self) -> None:
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
        told = report(tally, configuration().capacity)
        assert (told.jobs, told.superseded, told.never_started) == (4, 2, 0)

    @pytest.mark.parametrize("seed", range(5))
    def test_no_slot_is_used_twice_and_every_job_runs_once(self, seed: int) -> None:
        trace = random_trace(random.Random(seed), 200, labels=("linux", "illumos"))
        tried = configuration(3, illumos=2, caps="*=4")
        at = simulated_starts(trace, tried).at
        jobs = [job for run in trace for job in run]
        assert sorted(at) == sorted(job.name for job in jobs)
        for label, slots in tried.capacity.slots.items():
            of_label = [job for job in jobs if job.label == label]
            changes = sorted(
                [(at[job.name], 1) for job in of_label]
                + [(at[job.name] + job.seconds, -1) for job in of_label]
            )
            # At one moment ends stand before starts.
            assert max(accumulate(change for _, change in changes)) <= slots
        for job in jobs:
            assert at[job.name] >= job.at

    @pytest.mark.parametrize("slots", [1, 3])
    def test_waits_are_those_of_queueing_theory(self, slots: int) -> None:
        """One class and repository, Poisson arrivals, exponential durations: M/M/c, whose mean wait is Erlang's C formula's."""
        rng, load = random.Random(1), 0.7

        def trace() -> Iterator[TraceRun]:
            at = 0.0
            for _ in range(60_000):
                at += rng.expovariate(slots * load)
                yield [trace_job(at, rng.expovariate(1.0))]

        tally = Tally()
        simulate_trace(trace(), configuration(slots), tally)
        offered = slots * load
        queued = offered**slots / math.factorial(slots) / (1 - load)
        all_busy = queued / (sum(offered**n / math.factorial(n) for n in range(slots)) + queued)
        expected = all_busy / (slots - offered)
        assert statistics.fmean(tally.waits["linux", Priority.DEFAULT]) == pytest.approx(expected, rel=0.1)
        (use,) = report(tally, configuration(slots).capacity).labels
        assert use.utilisation == pytest.approx(load, rel=0.03)


class TestReport:
    def test_it_tells_of_waits_slots_and_repositories(self) -> None:
        trace = one_by_one(
            named("a"),
            named("b", 0.0, 10.0, repository="reef/tide", priority=Priority.LOW),
            named("c", 0.0, label="plan9"),
        )
        tried = configuration(1, illumos=2)
        told = report(simulated_starts(trace, tried), tried.capacity)
        assert [(each.label, each.priority, each.waits.jobs, each.waits.max) for each in told.waits] == [
            ("linux", Priority.DEFAULT, 1, 0.0),
            ("linux", Priority.LOW, 1, 10.0),
            ("linux", None, 2, 10.0),
        ]
        assert [
            (use.label, use.slots, use.jobs, use.utilisation, use.longest_line) for use in told.labels
        ] == [
            ("illumos", 2, 0, 0.0, 0),
            ("linux", 1, 2, 1.0, 1),
            ("plan9", 0, 1, 0.0, 0),
        ]
        assert (told.jobs, told.never_started, told.span_seconds) == (3, 1, 20.0)
        assert told.fairness is not None
        # One ran at once, the other waited as long as it ran: speeds 1 and 1/2.
        assert told.fairness.jain == pytest.approx(1.5**2 / (2 * 1.25))
        assert (told.fairness.slowest, told.fairness.slowest_speed) == ("reef/tide", 0.5)

    @pytest.mark.parametrize(
        "trace", [[], one_by_one(named("a", label="plan9"))], ids=["empty", "nothing ran"]
    )
    def test_a_trace_of_which_nothing_runs_is_told_too(self, trace: Sequence[TraceRun]) -> None:
        told = report(simulated_starts(trace, configuration()), configuration().capacity)
        assert (told.waits, told.fairness, told.span_seconds) == ([], None, 0.0)

    @pytest.mark.parametrize(
        ("shares", "index"), [([3.0, 3.0, 3.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 2.0], 0.9)]
    )
    def test_jain_s_index(self, shares: list[float], index: float) -> None:
        assert jain(shares) == pytest.approx(index)

    @pytest.mark.parametrize(
        ("share", "value"), [(0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (0.0, 1.0), (1.0, 10.0)]
    )
    def test_percentiles_are_values_that_were_there(self, share: float, value: float) -> None:
        assert percentile(array("d", [float(number) for number in range(1, 11)]), share) == value

    @pytest.mark.parametrize(
        "tried",
        [
            pytest.param(configuration(2, illumos=1), id="labels apart"),
            pytest.param(configuration(2, illumos=1, caps="*=9"), id="caps"),
            pytest.param(configuration(2, limit=2, illumos=1), id="a limit over all"),
        ],
    )
    @pytest.mark.parametrize("entangled", [True, False])
    def test_one_slot_more_is_what_playing_it_so_gives(
        self, tried: SimulationConfig, entangled: bool
    ) -> None:
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
        assert change.slots == 3
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

    def test_of_a_label_that_nobody_wants_nothing_is_said(self) -> None:
        tried, trace = configuration(1, illumos=1), one_by_one(named("a"))
        assert with_extra_slot(lambda: trace, tried, simulated_starts(trace, tried), "illumos") is None


def bounded(
    *, owners: str = "", hourly: str = "", labels: str = "", repositories: str = ""
) -> SimulationConfig:
    limits = StartLimits(
        quotas=Quotas(slots=parse_caps(owners), starts_per_hour=parse_caps(hourly)),
        rates=StartRates(labels=parse_rates(labels), repositories=parse_rates(repositories)),
    )
    return SimulationConfig(capacity=capacity({"linux": 50}, 0), limits=limits, max_wait_seconds=1e9)


class TestBounds:
    def test_an_owner_starts_no_more_until_the_hour_is_over(self) -> None:
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

    def test_an_owner_s_repositories_share_its_slots(self) -> None:
        trace = one_by_one(
            named("a", 0.0, repository="acme/app"),
            named("b", 1.0, repository="acme/docs"),
            named("c", 2.0, repository="reef/tide"),
        )
        assert simulated_starts(trace, bounded(owners="acme=1")).at == {"a": 0.0, "c": 2.0, "b": 10.0}

    def test_a_rate_lets_jobs_start_in_its_own_time(self) -> None:
        trace = one_by_one(*(named(f"job-{number}") for number in range(5)))
        at = simulated_starts(trace, bounded(labels="linux=450/h:2")).at
        assert sorted(at.values()) == [0.0, 0.0, 8.0, 16.0, 24.0]

    def test_who_may_start_nothing_never_does(self) -> None:
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
        self, text: str, seconds: float, most: int, seed: int
    ) -> None:
        """A token that is there a rounding error later than reckoned neither stops the play nor comes for nothing."""
        trace = random_trace(random.Random(seed), 80, entangled=False)
        for tried in (bounded(labels=f"linux={text}"), bounded(repositories=f"*={text}")):
            at = simulated_starts(trace, tried).at
            assert len(at) == len(trace)
            if tried.limits.rates.labels.any:
                starts = sorted(at.values())
                for begin in starts:
                    assert sum(begin <= each < begin + seconds for each in starts) <= most
