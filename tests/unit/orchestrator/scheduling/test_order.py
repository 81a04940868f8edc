"""The order of waiting jobs: ranks, shares of owners, and overdue jobs."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import (
    LONG_QUEUE,
    Candidate,
    ClaimExclusions,
    QueueEntry,
    QueueState,
    RemainingStarts,
    assign,
    exclusions_of,
    in_order,
    next_tag_without,
    overdue,
    queue_entry,
    rank,
    remaining_after,
    start_tags,
)
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from tests.scheduler_model import SchedulerModel

LABELS = ("linux", "illumos", "plan9")
REPOSITORIES = ("acme/app", "acme/docs", "reef/tide")

CANDIDATES = st.lists(
    st.builds(
        lambda repository, **fields: Candidate(
            repository=repository, owner=repository.partition("/")[0], **fields
        ),
        job_id=st.uuids().map(str),
        label=st.sampled_from(LABELS),
        priority=st.sampled_from(Priority),
        age=st.integers(0, 1000),
        repository=st.sampled_from(REPOSITORIES),
        start_tag=st.integers(0, 20),
        waiting_since=st.integers(0, 100).map(float),
    ),
    max_size=30,
    unique_by=(lambda candidate: candidate.age, lambda candidate: candidate.job_id),
)
FREE = st.dictionaries(st.sampled_from(LABELS), st.integers(0, 5))
REMAINING = st.builds(
    RemainingStarts,
    repositories=st.dictionaries(st.sampled_from(REPOSITORIES), st.integers(0, 3)),
    owners=st.dictionaries(st.sampled_from(["acme", "reef"]), st.integers(0, 4)),
)
OVERDUE_BEFORE = st.integers(-1, 101).map(float)


def candidate(
    job_id: str,
    priority: Priority = Priority.DEFAULT,
    *,
    age: int = 0,
    label: str = "linux",
    repository: str = "acme/app",
    start_tag: int = 0,
    since: float = 1000.0,
) -> Candidate:
    return Candidate(
        job_id=job_id,
        label=label,
        priority=priority,
        age=age,
        repository=repository,
        owner=repository.partition("/")[0],
        start_tag=start_tag,
        waiting_since=since,
    )


def names(candidates: list[Candidate] | tuple[Candidate, ...]) -> list[str]:
    return [each.job_id for each in candidates]


class TestOrder:
    @pytest.mark.parametrize(
        ("waiting", "order"),
        [
            pytest.param(
                [
                    candidate("low", Priority.LOW, age=1),
                    candidate("young", age=9),
                    candidate("old", age=2),
                    candidate("critical", Priority.CRITICAL, age=50),
                    candidate("high", Priority.HIGH, age=40),
                ],
                ["critical", "high", "old", "young", "low"],
                id="the urgent first, and among equals the oldest",
            ),
            pytest.param(
                [
                    candidate("a1", age=1, start_tag=0),
                    candidate("a2", age=2, start_tag=1),
                    candidate("a3", age=3, start_tag=2),
                    candidate("b1", age=4, start_tag=0, repository="reef/tide"),
                    candidate("b2", age=5, start_tag=1, repository="reef/tide"),
                ],
                ["a1", "b1", "a2", "b2", "a3"],
                id="repositories take turns",
            ),
            pytest.param(
                [
                    candidate("a1", age=1, start_tag=7),
                    candidate("b1", Priority.HIGH, age=4, start_tag=900, repository="reef/tide"),
                ],
                ["b1", "a1"],
                id="start tags count within a class only",
            ),
            pytest.param(
                [
                    candidate("critical", Priority.CRITICAL, age=1, since=500.0),
                    candidate("late", Priority.LOW, age=3, start_tag=9, since=99.0),
                    candidate("later still", Priority.LOW, age=4, start_tag=9, since=98.0),
                    candidate("just in time", Priority.LOW, age=2, since=100.0),
                ],
                ["later still", "late", "critical", "just in time"],
                id="the overdue first, whatever their class, the longest wait first",
            ),
        ],
    )
    def test_jobs_of_a_label_start_in_this_order(self, waiting: list[Candidate], order: list[str]) -> None:
        assert names(in_order(waiting, overdue_before=100.0)) == order
        assert names(list(assign(waiting, {"linux": 9}, 9, overdue_before=100.0))) == order

    @pytest.mark.parametrize(
        ("since", "late"), [(0.0, True), (99.9, True), (100.0, False), (200.0, False)], ids=str
    )
    def test_a_job_is_overdue_after_more_than_the_longest_wait(self, since: float, late: bool) -> None:
        assert overdue(since, now=1900.0, max_wait_seconds=1800.0) is late

    def test_between_labels_the_older_job_goes_first_independent_of_start_tags(self) -> None:
        waiting = [
            candidate("busy label", start_tag=9000, age=1),
            candidate("busy label too", start_tag=9001, age=4),
            candidate("quiet label", start_tag=0, age=3, label="illumos"),
        ]
        assert names(list(assign(waiting, {"linux": 2, "illumos": 2}, 2))) == ["busy label", "quiet label"]


class TestSlotsAndLimits:
    def test_a_full_label_does_not_hold_up_another(self) -> None:
        candidates = [
            candidate("a", age=1),
            candidate("b", age=2),
            candidate("c", age=3, label="illumos"),
        ]
        assert names(list(assign(candidates, {"linux": 1, "illumos": 1}, 9))) == ["a", "c"]

    def test_a_repository_without_room_does_not_hold_up_another(self) -> None:
        candidates = [
            candidate("a1", start_tag=0, age=1),
            candidate("a2", start_tag=1, age=2),
            candidate("a3", start_tag=2, age=3),
            candidate("b1", start_tag=5, age=4, repository="reef/tide"),
        ]
        chosen = assign(candidates, {"linux": 9}, 9, remaining=RemainingStarts(repositories={"acme/app": 2}))
        assert names(list(chosen)) == ["a1", "a2", "b1"]
        left = remaining_after(RemainingStarts(repositories={"acme/app": 2, "acme/docs": 1}), chosen)
        assert exclusions_of(left) == ClaimExclusions(repositories=frozenset({"acme/app"}))

    def test_an_owner_without_room_does_not_hold_up_another(self) -> None:
        candidates = [
            candidate("a1", start_tag=0, age=1),
            candidate("d1", start_tag=0, age=2, repository="acme/docs"),
            candidate("a2", start_tag=1, age=3),
            candidate("b1", start_tag=5, age=4, repository="reef/tide"),
        ]
        remaining = RemainingStarts(repositories={"acme/app": 2}, owners={"acme": 2, "reef": 2})
        chosen = assign(candidates, {"linux": 9}, 9, remaining=remaining)
        assert names(list(chosen)) == ["a1", "d1", "b1"]
        assert remaining_after(remaining, chosen) == RemainingStarts(
            repositories={"acme/app": 1}, owners={"acme": 0, "reef": 1}
        )
        assert exclusions_of(remaining_after(remaining, chosen)) == ClaimExclusions(
            owners=frozenset({"acme"})
        )

    @pytest.mark.parametrize(
        "remaining",
        [RemainingStarts(repositories={"acme/app": 0}), RemainingStarts(owners={"acme": 0})],
        ids=["repository", "owner"],
    )
    def test_overdue_jobs_stay_within_free_slots_and_limits(self, remaining: RemainingStarts) -> None:
        candidates = [candidate("late", since=0.0, age=1), candidate("b1", age=2, repository="reef/tide")]
        assert names(list(assign(candidates, {"linux": 9}, 9, overdue_before=9.0, remaining=remaining))) == [
            "b1"
        ]

    @given(CANDIDATES, FREE, st.integers(0, 20), REMAINING, OVERDUE_BEFORE)
    def test_no_slot_and_no_room_is_used_twice_and_none_is_left_while_a_job_fits(
        self,
        candidates: list[Candidate],
        free: dict[str, int],
        limit: int,
        remaining: RemainingStarts,
        overdue_before: float,
    ) -> None:
        chosen = assign(candidates, free, limit, overdue_before=overdue_before, remaining=remaining)
        used = Counter(each.label for each in chosen)
        of_repository = Counter(each.repository for each in chosen)
        of_owner = Counter(each.owner for each in chosen)
        assert len({each.job_id for each in chosen}) == len(chosen) <= limit
        assert all(used[label] <= free.get(label, 0) for label in used)
        assert all(of_repository[each] <= remaining.repositories.get(each, 99) for each in of_repository)
        assert all(of_owner[each] <= remaining.owners.get(each, 99) for each in of_owner)
        if len(chosen) < limit:
            left_out = [each for each in candidates if each not in chosen]
            assert not any(
                used[each.label] < free.get(each.label, 0)
                and of_repository[each.repository] < remaining.repositories.get(each.repository, 99)
                and of_owner[each.owner] < remaining.owners.get(each.owner, 99)
                for each in left_out
            )

    @given(CANDIDATES, FREE, st.integers(0, 20), REMAINING, OVERDUE_BEFORE)
    def test_no_job_is_overtaken_within_a_label_by_one_without_room_where_it_had_none(
        self,
        candidates: list[Candidate],
        free: dict[str, int],
        limit: int,
        remaining: RemainingStarts,
        overdue_before: float,
    ) -> None:
        chosen = assign(candidates, free, limit, overdue_before=overdue_before, remaining=remaining)
        left = exclusions_of(remaining_after(remaining, chosen))
        for label in LABELS:
            order = in_order([each for each in candidates if each.label == label], overdue_before)
            started = [each for each in chosen if each.label == label]
            assert started == [each for each in order if each in started]
            for each in order[: order.index(started[-1])] if started else ():
                assert each in started or each.repository in left.repositories or each.owner in left.owners


class TestFairOrder:
    @pytest.mark.parametrize(
        ("queue", "entry"),
        [
            pytest.param(QueueState(), QueueEntry(start_tag=1, clock=0), id="nobody was ever here"),
            pytest.param(
                QueueState(clock=4, first_tag=10, first_next_tag=12),
                QueueEntry(start_tag=10, clock=9),
                id="level with the first, in the round that is under way",
            ),
            pytest.param(
                QueueState(clock=4, first_tag=10, first_next_tag=10 + LONG_QUEUE),
                QueueEntry(start_tag=9, clock=9),
                id="just before the first of a long queue",
            ),
            pytest.param(
                QueueState(clock=9, first_tag=9, first_next_tag=900),
                QueueEntry(start_tag=9, clock=9),
                id="not before a repository that has just arrived",
            ),
            pytest.param(
                QueueState(clock=4, largest_next_tag=120),
                QueueEntry(start_tag=121, clock=120),
                id="nobody waits: what was taken is forgotten",
            ),
            pytest.param(
                QueueState(clock=121, largest_next_tag=120),
                QueueEntry(start_tag=122, clock=121),
                id="the clock never goes back",
            ),
        ],
    )
    def test_a_newly_arrived_repository_enters_here(self, queue: QueueState, entry: QueueEntry) -> None:
        assert queue_entry(queue) == entry

    @pytest.mark.parametrize(
        ("next_tag", "given_tags"),
        [
            pytest.param(None, [5, 6, 7], id="a new repository"),
            pytest.param(2, [5, 6, 7], id="one that took less than its share"),
            pytest.param(40, [40, 41, 42], id="one that waits already"),
        ],
    )
    def test_jobs_of_one_repository_follow_each_other(
        self, next_tag: int | None, given_tags: list[int]
    ) -> None:
        assert list(start_tags(QueueEntry(start_tag=5, clock=4), next_tag, 3)) == given_tags

    @pytest.mark.parametrize(
        ("given_up", "left"),
        [([], 10), ([9], 9), ([7, 8, 9], 7), ([7, 9], 9), ([3], 10)],
        ids=["none", "the newest", "the newest three", "one with a gap", "an old one"],
    )
    def test_what_is_cancelled_while_it_waits_is_given_back(self, given_up: list[int], left: int) -> None:
        assert next_tag_without(10, given_up) == left

    def test_a_superseded_push_costs_its_repository_no_start_tag(self) -> None:
        model = SchedulerModel()
        model.arrive("busy", 100)
        for _ in range(20):
            model.cancel(model.arrive("eager", 3))
        last = model.arrive("eager", 3)
        model.claim("worker", {"linux": 1})
        assert model.started[0].job_id == last[0]


class TestFairness:
    @pytest.mark.parametrize("started", [0, 1, 4, 500])
    def test_with_a_thousand_jobs_of_one_waiting_another_starts_at_the_next_free_slot(
        self, started: int
    ) -> None:
        model = SchedulerModel()
        model.arrive("harbour", 1000)
        for job in model.claim("worker", {"linux": started}, limit=started):
            model.now += 1
            model.end(job.job_id)
        (stranger,) = model.arrive("lantern", 1)
        (job,) = model.claim("worker", {"linux": 1})
        assert job.job_id == stranger

    def test_newly_arrived_repositories_do_not_overtake_each_other(self) -> None:
        model = SchedulerModel()
        model.arrive("harbour", 50)
        model.claim("worker", {"linux": 5})
        newcomers = [model.arrive(f"newcomer-{number}")[0] for number in range(10)]
        assert [each.job_id for each in model.claim("worker", {"linux": 10})] == newcomers

    def test_who_waits_with_a_few_jobs_is_not_overtaken_by_the_first_job_of_those_who_come_later(
        self,
    ) -> None:
        model = SchedulerModel()
        first = [model.arrive(f"repository-{number}", 3)[0] for number in range(10)]
        assert [each.job_id for each in model.claim("worker", {"linux": 10})] == first

    def test_past_use_is_forgotten_while_others_were_absent(self) -> None:
        model = SchedulerModel()
        model.arrive("harbour", 200)
        while model.claim("worker", {"linux": 32}):
            pass
        model.arrive("lantern", 10)
        model.arrive("harbour", 10)
        started = Counter(each.repository for each in model.claim("worker", {"linux": 10}))
        assert started == {"harbour": 5, "lantern": 5}

    @pytest.mark.parametrize(
        "bounds",
        [
            pytest.param({"caps": Caps(of={"reef/capped": 1})}, id="cap"),
            pytest.param({"rates": StartRates(repositories=parse_rates("reef/capped=1/h"))}, id="rate"),
            pytest.param({"quotas": Quotas(slots=Caps(of={"reef": 1}))}, id="owner's cap"),
            pytest.param({"quotas": Quotas(starts_per_hour=Caps(of={"reef": 1}))}, id="owner's quota"),
        ],
    )
    def test_who_has_all_it_may_have_does_not_hold_back_the_clock_of_others(
        self, bounds: dict[str, Any]
    ) -> None:
        model = SchedulerModel(**bounds)
        model.arrive("reef/capped", 100)
        model.arrive("harbour", 100)
        model.claim("worker", {"linux": 32})
        model.arrive("lantern", 100)
        started = Counter(each.repository for each in model.claim("worker", {"linux": 20}))
        assert started == {"harbour": 10, "lantern": 10}

    @pytest.mark.parametrize("repositories", [2, 5, 20])
    def test_equal_repositories_get_equal_shares(self, repositories: int) -> None:
        """Jain, Chiu and Hawe 1984: 1 is perfectly fair, 1/n is one that has everything."""
        model = SchedulerModel()
        for number in range(repositories):
            model.arrive(f"repository-{number}", 50 * (number + 1))
        for _ in range(10 * repositories):
            model.now += 1
            for job in model.claim("worker", {"linux": 2}):
                model.end(job.job_id)
        shares = list(Counter(each.repository for each in model.started).values())
        jain = sum(shares) ** 2 / (repositories * sum(share**2 for share in shares))
        assert jain == 1.0

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from("abcd"), st.integers(1, 12)),
                st.tuples(st.just(""), st.integers(1, 5)),
            ),
            max_size=60,
        )
    )
    @example([("a", 6), ("c", 12), ("", 16), ("a", 10), ("", 1), ("b", 4), ("", 2), ("c", 1), ("", 6)])
    def test_while_two_both_wait_neither_gets_more_than_three_ahead(
        self, story: list[tuple[str, int]]
    ) -> None:
        """Start-time fair queueing promises two for equal costs.

        One more is for the job that passes a long queue.
        """
        model = SchedulerModel()
        ahead: Counter[tuple[str, str]] = Counter()
        for repository, count in story:
            if repository:
                model.arrive(repository, count)
                continue
            for _ in range(count):
                waiting = {each.repository for each in model.waiting}
                pairs = {(one, other) for one in waiting for other in waiting if one != other}
                ahead = Counter({pair: ahead[pair] for pair in pairs})
                for job in model.claim("worker", {"linux": 1}):
                    for one, other in pairs:
                        ahead[one, other] += (one == job.repository) - (other == job.repository)
                assert all(lead <= 3 for lead in ahead.values())


def test_the_urgent_rank_lowest() -> None:
    assert [rank(each) for each in Priority] == [0, 1, 2, 3]


def test_of_two_labels_the_overdue_goes_first_however_urgent_the_other_is() -> None:
    urgent = candidate("urgent", Priority.HIGH, age=1, since=900.0)
    long_waiting = candidate("long waiting", Priority.LOW, age=2, label="illumos", since=100.0)
    free = {"linux": 1, "illumos": 1}
    assert [each.job_id for each in assign([urgent, long_waiting], free, 1)] == ["urgent"]
    overdue_first = assign([urgent, long_waiting], free, 1, overdue_before=500.0)
    assert [each.job_id for each in overdue_first] == ["long waiting"]
    # A job that came at that moment, or later, is not overdue.
    assert [each.job_id for each in assign([urgent, long_waiting], free, 1, overdue_before=100.0)] == [
        "urgent"
    ]


def test_a_job_that_is_not_known_to_wait_is_never_overdue() -> None:
    unknown = Candidate(job_id="unknown", label="linux", priority=Priority.DEFAULT, age=1)
    late = candidate("late", Priority.LOW, age=2, since=5.0)
    assert names(in_order([unknown, late], overdue_before=10.0)) == ["late", "unknown"]
