"""The demand of a label for autoscalers, by tables and as laws."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.demand import (
    HELD_BACK,
    Demand,
    DemandFacts,
    RunningJob,
    WaitingJobs,
    demands,
    total_demand,
)
from solstice_orchestrator.queue_times.forecast import Sample
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.quotas import OwnerStarts, Quotas
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, Rate, RateBucket, Rates, StartRates
from solstice_orchestrator.scheduling.starts import StartBudget, StartLimits
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView

NOW = 1_800_000_000.0


def waits(
    jobs: int, repository: str = "acme/app", label: str = "linux", seconds: float = 30.0
) -> WaitingJobs:
    return WaitingJobs(label=label, repository=repository, jobs=jobs, oldest=NOW - seconds)


def runs(seconds: float, repository: str = "acme/app", label: str = "linux") -> RunningJob:
    return RunningJob(label=label, repository=repository, started_at=NOW - seconds)


def lasted(seconds: float, count: int = 3, repository: str = "acme/app") -> list[Sample]:
    return [Sample(repository=repository, seconds=seconds)] * count


def worker(
    slots: Mapping[str, int],
    *,
    state: WorkerState = WorkerState.ACTIVE,
    presence: Presence = Presence.ALIVE,
    limit: int = 100,
    shrunk_to: int | None = None,
) -> WorkerView:
    return WorkerView(
        worker_id="w",
        name="quay",
        host="quay.example",
        version="1",
        slots=slots,
        limit=limit,
        state=state,
        presence=presence,
        quarantined_until=None,
        failures_in_a_row=0,
        started_at=NOW,
        seen_at=NOW,
        jobs=(),
        shrunk_to=shrunk_to,
    )


def of_linux(facts: DemandFacts, target: float = 300.0) -> Demand:
    return demands(facts, target_seconds=target, label="linux")["linux"]


def rated(name: str, per_second: float, tokens: float, scope: BucketScope = BucketScope.LABEL) -> StartBudget:
    rates = Rates(of={name: Rate(text="", per_second=per_second, burst=20)})
    of_scope = StartRates(labels=rates) if scope is BucketScope.LABEL else StartRates(repositories=rates)
    return StartBudget(
        limits=StartLimits(rates=of_scope), buckets={BucketKey(scope, name): RateBucket(tokens, NOW)}, now=NOW
    )


FACTS = DemandFacts(now=NOW)


def test_everything_is_zero_for_an_unknown_label() -> None:
    nothing = of_linux(FACTS)
    assert nothing == Demand(
        waiting=0,
        running=0,
        slots=0,
        wanted_slots=0,
        expected_work_seconds=0,
        oldest_wait_seconds=0,
        delayed=0,
        samples=0,
        held_back=dict.fromkeys(HELD_BACK, 0),
    )
    assert demands(FACTS) == {}


@pytest.mark.parametrize(
    ("seconds", "jobs", "target", "expected"),
    [
        (60.0, 1, 300.0, 1),
        (60.0, 5, 300.0, 1),
        (60.0, 6, 300.0, 2),
        (60.0, 100, 300.0, 20),
        (60.0, 100, 60.0, 100),
        (60.0, 100, 6000.0, 1),
        # A job has one slot, however long it lasts.
        (600.0, 10, 300.0, 10),
        (0.1, 3000, 300.0, 1),
    ],
)
def test_as_many_slots_are_wanted_as_get_it_done_within_the_target(
    seconds: float, jobs: int, target: float, expected: int
) -> None:
    facts = replace(FACTS, waiting=[waits(jobs)], recent={"linux": lasted(seconds)})
    found = of_linux(facts, target)
    assert found.wanted_slots == expected
    assert found.expected_work_seconds == pytest.approx(jobs * seconds)
    assert (found.waiting, found.samples, found.oldest_wait_seconds) == (jobs, 3, 30.0)


def test_without_experience_a_job_takes_as_long_as_the_target_and_so_a_slot() -> None:
    found = of_linux(replace(FACTS, waiting=[waits(7)], running=[runs(100.0)]))
    assert (found.wanted_slots, found.samples) == (8, 0)
    assert found.expected_work_seconds == 7 * 300 + 200
    assert of_linux(replace(FACTS, running=[runs(400.0)])).expected_work_seconds == 0


def test_each_repository_is_judged_by_its_own_jobs_when_there_are_enough() -> None:
    facts = replace(
        FACTS,
        waiting=[waits(10), waits(10, "acme/slow"), waits(10, "acme/new")],
        recent={
            "linux": [*lasted(10.0), *lasted(100.0, repository="acme/slow"), *lasted(40.0, 1, "acme/new")]
        },
    )
    mean = (3 * 10 + 3 * 100 + 40) / 7
    assert of_linux(facts).expected_work_seconds == pytest.approx(10 * 10 + 10 * 100 + 10 * mean)


def test_of_running_jobs_counts_what_is_left_as_those_show_that_ran_longer() -> None:
    recent = [*lasted(50.0), *lasted(150.0, 1)]
    found = of_linux(replace(FACTS, running=[runs(10.0), runs(100.0), runs(500.0)], recent={"linux": recent}))
    # (3 x 50 + 150) / 4 - 10; of those beyond 100 s there is one; none ran for 500 s.
    assert found.expected_work_seconds == pytest.approx(65 + 50 + 0)
    assert found.running == 3


@pytest.mark.parametrize(("ran", "left"), [(-5.0, 60.0), (0.0, 60.0), (0.5, 59.5)])
def test_job_that_has_just_started_takes_nearly_its_whole_time(ran: float, left: float) -> None:
    found = of_linux(replace(FACTS, running=[runs(ran)], recent={"linux": lasted(60.0)}))
    assert found.expected_work_seconds == pytest.approx(left)


def test_slots_in_use_are_not_taken_away() -> None:
    found = of_linux(replace(FACTS, running=[runs(55.0)] * 4, recent={"linux": lasted(60.0)}))
    assert found.expected_work_seconds == pytest.approx(20)
    assert found.wanted_slots == 4


def test_slots_are_those_of_workers_that_take_jobs() -> None:
    crew = [
        worker({"linux": 4, "illumos": 1}),
        worker({"linux": 8}, shrunk_to=3),
        worker({"linux": 8}, limit=2),
        worker({"linux": 16}, state=WorkerState.PAUSED),
        worker({"linux": 32}, presence=Presence.LOST),
    ]
    found = demands(replace(FACTS, workers=crew))
    assert {label: demand.slots for label, demand in found.items()} == {"illumos": 1, "linux": 4 + 3 + 2}


def test_what_a_slot_would_not_help_is_counted_apart() -> None:
    held_back = {
        (JobState.BLOCKED, "linux"): 5,
        (JobState.APPROVAL, "linux"): 2,
        (JobState.BACKOFF, "linux"): 1,
        (JobState.BLOCKED, "big"): 9,
    }
    found = of_linux(replace(FACTS, held_back=held_back))
    assert found.held_back == {
        "blocked": 5,
        "approval": 2,
        "backoff": 1,
        "repository_cap": 0,
        "owner_cap": 0,
        "rate_limited": 0,
    }
    assert (found.waiting, found.wanted_slots) == (0, 0)


def test_beyond_the_cap_of_its_repository_no_slot_helps() -> None:
    facts = replace(
        FACTS,
        waiting=[waits(50, "acme/app"), waits(3, "acme/tool")],
        running=[runs(1.0), runs(1.0, label="big")],
        starts=StartBudget(limits=StartLimits(caps=Caps(of={"acme/app": 5}, default=2))),
    )
    found = of_linux(facts)
    # Of acme/app two run, one of them elsewhere.
    assert found.waiting == 3 + 2
    assert found.held_back["repository_cap"] == 47 + 1


def test_beyond_the_cap_of_its_owner_no_slot_helps_any_repository() -> None:
    quotas = Quotas(slots=Caps(of={"acme": 5}))
    facts = replace(
        FACTS,
        waiting=[waits(4, "acme/app"), waits(4, "acme/tool", seconds=10.0), waits(4, "river/otter")],
        running=[runs(1.0), runs(1.0, "acme/tool", "big")],
        starts=StartBudget(limits=StartLimits(quotas=quotas)),
    )
    found = of_linux(facts)
    assert found.waiting == 3 + 4
    assert (found.held_back["owner_cap"], found.held_back["repository_cap"]) == (5, 0)


@pytest.mark.parametrize(
    ("target", "starts"),
    [
        (60.0, 2),
        (600.0, 6),  # four of those that started will not count any more
        (3600.0, 12),  # none will, nor those that start now
        (5400.0, 16),
    ],
)
def test_what_its_owner_may_not_start_within_the_target_needs_no_slot(target: float, starts: int) -> None:
    budget = StartBudget(
        limits=StartLimits(quotas=Quotas(starts_per_hour=Caps(default=10))),
        started={"acme": [OwnerStarts(NOW + 300, 4), OwnerStarts(NOW + 3000, 4)]},
        now=NOW,
    )
    found = of_linux(replace(FACTS, waiting=[waits(100)], starts=budget), target)
    assert (found.waiting, found.held_back["rate_limited"]) == (starts, 100 - starts)


@pytest.mark.parametrize(
    ("tokens", "per_second", "starts"), [(0.0, 0.1, 30), (10.0, 0.1, 40), (-5.0, 0.01, 0), (1.0, 1.0, 100)]
)
def test_what_may_not_start_within_the_target_needs_no_slot(
    tokens: float, per_second: float, starts: int
) -> None:
    for budget in (
        rated("linux", per_second, tokens),
        rated("acme/app", per_second, tokens, BucketScope.REPOSITORY),
    ):
        found = of_linux(replace(FACTS, waiting=[waits(100)], starts=budget))
        assert (found.waiting, found.held_back["rate_limited"]) == (starts, 100 - starts)


def test_of_several_labels_together_everything_is_added_but_the_longest_wait() -> None:
    facts = replace(
        FACTS,
        waiting=[waits(3, seconds=10.0), waits(2, label="big", seconds=90.0)],
        workers=[worker({"linux": 2, "arm": 1})],
        delayed={"linux": 4, None: 6},
    )
    found = demands(facts)
    assert list(found) == ["arm", "big", "linux"]
    assert found["linux"].delayed == 4
    every = total_demand(found.values(), 10)
    assert (every.waiting, every.slots, every.wanted_slots, every.delayed) == (5, 3, 5, 10)
    assert every.oldest_wait_seconds == 90.0


def test_without_labels_everything_is_nothing_together_but_what_is_delayed() -> None:
    assert total_demand([], 3) == replace(of_linux(FACTS), delayed=3)


JOBS = st.integers(1, 50)
NAMES = st.sampled_from(["a/a", "a/b", "c/c"])
LABELS = st.sampled_from(["linux", "big"])


@given(
    waiting=st.dictionaries(st.tuples(LABELS, NAMES), JOBS),
    running=st.lists(st.builds(runs, st.floats(0, 1000), NAMES, LABELS), max_size=9),
    recent=st.lists(st.builds(Sample, repository=NAMES, seconds=st.floats(0, 1000)), max_size=20),
    cap=st.none() | st.integers(0, 20),
    owner_cap=st.none() | st.integers(0, 20),
    budget=st.none() | st.builds(rated, LABELS, st.floats(0.001, 10), st.floats(-5, 20)),
    target=st.floats(1, 86_400),
)
def test_the_numbers_add_up_for_any_content(
    waiting: dict[tuple[str, str], int],
    running: list[RunningJob],
    recent: list[Sample],
    cap: int | None,
    owner_cap: int | None,
    budget: StartBudget | None,
    target: float,
) -> None:
    limits = StartLimits(
        caps=Caps(default=cap),
        quotas=Quotas(slots=Caps(default=owner_cap)),
        rates=budget.limits.rates if budget else StartRates(),
    )
    facts = DemandFacts(
        now=NOW,
        waiting=[waits(jobs, name, label) for (label, name), jobs in waiting.items()],
        running=running,
        starts=replace(budget or StartBudget(), limits=limits),
        recent={"linux": recent},
    )
    for label, found in demands(facts, target_seconds=target).items():
        waiting_jobs = sum(jobs for (each, _), jobs in waiting.items() if each == label)
        held_back = sum(found.held_back[why] for why in ("repository_cap", "owner_cap", "rate_limited"))
        assert found.waiting + held_back == waiting_jobs
        assert min(found.waiting, found.running, *found.held_back.values()) >= 0
        assert found.running <= found.wanted_slots <= found.waiting + found.running
        assert math.isfinite(found.expected_work_seconds)
        assert found.expected_work_seconds >= 0
        longer = demands(facts, target_seconds=target * 2, label=label)[label]
        if found.samples and budget is None:
            assert longer.wanted_slots <= found.wanted_slots
