"""A claim takes a token for each start, and counts it for the owner."""

import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.quotas import OwnerStarts, Quotas
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, RateBucket, StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import (
    StartBudget,
    StartedRow,
    StartLimits,
    buckets_of,
    started_of,
)

NOW = 1_800_000_000.0
BOTH = StartRates(labels=parse_rates("linux=10/s:5"), repositories=parse_rates("acme/app=1/s:4"))


def candidate(job_id: str, *, label: str = "linux", repository: str = "acme/app") -> Candidate:
    return Candidate(
        job_id=job_id,
        label=label,
        priority=Priority.DEFAULT,
        age=0,
        repository=repository,
        owner=repository.partition("/")[0],
        start_tag=0,
        waiting_since=0.0,
    )


def test_every_start_takes_a_token_of_its_label_and_one_of_its_repository() -> None:
    starts = StartBudget(limits=StartLimits(rates=BOTH), now=NOW)
    chosen = [candidate("a"), candidate("b", repository="reef/tide"), candidate("c", label="illumos")]
    left = {(row.scope, row.name): row.amount for row in starts.spent(chosen, NOW)}
    assert left == {(BucketScope.LABEL, "linux"): 5 - 2, (BucketScope.REPOSITORY, "acme/app"): 4 - 2}


def test_no_more_start_than_there_are_tokens_for() -> None:
    buckets = {
        BucketKey(BucketScope.LABEL, "linux"): RateBucket(2.0, NOW),
        BucketKey(BucketScope.REPOSITORY, "acme/app"): RateBucket(1.0, NOW),
    }
    starts = StartBudget(limits=StartLimits(rates=BOTH), buckets=buckets, now=NOW)
    assert starts.fit({"linux": 3, "illumos": 7}) == {"linux": 2, "illumos": 7}
    assert starts.remaining(["acme/app", "reef/tide"], ["acme"]).repositories == {"acme/app": 1}


def test_of_two_limits_the_tighter_holds() -> None:
    limits = StartLimits(caps=Caps(of={"acme/app": 3}), rates=BOTH)
    assert StartBudget(limits=limits, running={"acme/app": 1}, now=NOW).remaining(
        ["acme/app"], []
    ).repositories == {"acme/app": 2}
    assert StartBudget(limits=limits, running={}, now=NOW).remaining(["acme/app"], []).repositories == {
        "acme/app": 3
    }


def test_starts_are_counted_of_owners_that_have_a_quota_of_them() -> None:
    quotas = Quotas(starts_per_hour=Caps(of={"acme": 5}))
    chosen = [candidate("a"), candidate("b"), candidate("c", repository="reef/tide")]
    (row,) = StartBudget(limits=StartLimits(quotas=quotas), now=NOW).counted(chosen, NOW)
    assert (row.owner, row.starts) == ("acme", 2)
    assert NOW + 3600 <= row.until <= NOW + 3660


@pytest.mark.parametrize(
    ("limits", "by_sender", "of_time", "of_running"),
    [
        (StartLimits(), False, False, False),
        (StartLimits(caps=Caps(of={"acme/app": 1})), True, False, True),
        (StartLimits(quotas=Quotas(slots=Caps(of={"acme": 1}))), True, False, True),
        (StartLimits(quotas=Quotas(starts_per_hour=Caps(of={"acme": 1}))), True, True, False),
        (StartLimits(rates=StartRates(labels=parse_rates("*=1/s"))), False, True, False),
        (StartLimits(rates=StartRates(repositories=parse_rates("*=1/s"))), True, True, False),
    ],
    ids=["none", "cap", "slots", "starts per hour", "rate of a label", "rate of a repository"],
)
def test_what_has_to_be_looked_up_for_a_limit(
    limits: StartLimits, *, by_sender: bool, of_time: bool, of_running: bool
) -> None:
    assert (limits.by_sender, limits.of_time, limits.of_running) == (by_sender, of_time, of_running)
    assert limits.any is (by_sender or of_time or of_running)


@pytest.mark.parametrize("since", [0.0, 30.0], ids=["a claim just now", "a claim half a minute ago"])
def test_it_looks_again_when_the_first_limit_lets_one_more_start(since: float) -> None:
    full = {
        "acme": (OwnerStarts(until=NOW + 100, starts=1),),
        "reef": (OwnerStarts(until=NOW + 50, starts=1),),
    }
    limits = StartLimits(quotas=Quotas(starts_per_hour=Caps(of={"acme": 1, "reef": 1})))
    assert StartBudget(limits=limits, started=full, now=NOW).pause_seconds(since) == pytest.approx(50.0)
    assert StartBudget(limits=limits, now=NOW).pause_seconds(since) is None


def bucket_budget(amount: float, at: float = NOW) -> StartBudget:
    """A label that gets a token every four seconds, and holds so many."""
    rates = StartRates(labels=parse_rates("linux=15/m:5"))
    buckets = {BucketKey(BucketScope.LABEL, "linux"): RateBucket(amount, at)}
    return StartBudget(limits=StartLimits(rates=rates), buckets=buckets, now=NOW)


@pytest.mark.parametrize(
    ("starts", "since", "pause"),
    [
        pytest.param(bucket_budget(0.25), 0.0, 3.0, id="the rest of a token"),
        pytest.param(bucket_budget(-1.0), 0.0, 8.0, id="more was taken than there was"),
        pytest.param(bucket_budget(2.0), 0.0, None, id="tokens are there"),
        pytest.param(bucket_budget(0.0, NOW - 5), 0.0, None, id="a token came before the claim"),
        pytest.param(bucket_budget(0.0, NOW - 5), 2.0, 0.0, id="a token came during the claim"),
    ],
)
def test_it_looks_again_when_a_rate_has_the_next_token(
    starts: StartBudget, since: float, pause: float | None
) -> None:
    assert starts.pause_seconds(since) == pause


def test_the_first_of_several_limits_says_when_to_look_again_and_a_quota_of_nothing_never() -> None:
    limits = StartLimits(
        quotas=Quotas(starts_per_hour=Caps(of={"acme": 1, "none": 0})),
        rates=StartRates(labels=parse_rates("linux=15/m:5")),
    )
    buckets = {
        BucketKey(BucketScope.LABEL, "linux"): RateBucket(0.0, NOW),
        BucketKey(BucketScope.LABEL, "arm"): RateBucket(0.0, NOW),
    }
    started = {
        "acme": [OwnerStarts(NOW + 100, 1)],
        "none": [OwnerStarts(NOW + 1, 1)],
        "free": [OwnerStarts(NOW + 1, 1)],
    }
    assert StartBudget(limits=limits, started=started, buckets=buckets, now=NOW).pause_seconds() == 4.0
    assert StartBudget(limits=limits, started=started, now=NOW).pause_seconds() == 100.0
    assert StartBudget(limits=limits, started={"none": started["none"]}, now=NOW).pause_seconds() is None


def test_the_room_of_all_names_is_that_of_those_that_run_have_started_or_are_limited() -> None:
    limits = StartLimits(
        caps=Caps(of={"reef/tide": 7}, default=3),
        quotas=Quotas(slots=Caps(of={"fen": 9}, default=4), starts_per_hour=Caps(of={"moor": 8}, default=5)),
        rates=StartRates(repositories=parse_rates("*=1/s:6")),
    )
    all_remaining = StartBudget(
        limits=limits,
        running={"acme/app": 2},
        started={"tor": [OwnerStarts(NOW + 60, 3)], "moor": [OwnerStarts(NOW, 1)]},
        buckets={
            BucketKey(BucketScope.REPOSITORY, "dune/a"): RateBucket(1.0, NOW),
            BucketKey(BucketScope.LABEL, "linux"): RateBucket(0.0, NOW),
        },
        now=NOW,
    ).all_remaining()
    assert all_remaining.repositories == {"acme/app": 1, "dune/a": 1, "reef/tide": 6}
    assert all_remaining.owners == {"acme": 2, "tor": 2, "fen": 5, "moor": 4}


def test_running_jobs_of_an_owner_are_counted_over_its_repositories() -> None:
    quotas = Quotas(slots=Caps(default=4))
    budget = StartBudget(limits=StartLimits(quotas=quotas), running={"acme/app": 1, "acme/docs": 2, "": 1})
    assert budget.remaining([], ["acme", ""]).owners == {"acme": 1}


def test_only_buckets_with_a_rate_limit_a_start_and_one_that_is_not_stored_is_full() -> None:
    keys = [BucketKey(BucketScope.LABEL, name) for name in ("linux", "arm")]
    (throttle,) = bucket_budget(0.5, NOW - 4).throttles(keys)
    assert (throttle.key, throttle.rate.text, throttle.tokens) == (keys[0], "15/m:5", 1.5)
    (full,) = StartBudget(limits=bucket_budget(0.0).limits, now=NOW).throttles(keys)
    assert full.tokens == 5.0


def test_without_rates_or_quotas_nothing_is_stored_of_a_start() -> None:
    assert list(StartBudget().spent([candidate("a")], NOW)) == []
    assert list(StartBudget().counted([candidate("a")], NOW)) == []


def test_what_is_stored_is_read_again() -> None:
    spent = bucket_budget(3.0).spent([candidate("a")], NOW)
    assert buckets_of(spent) == {BucketKey(BucketScope.LABEL, "linux"): RateBucket(2.0, NOW)}
    # Three of five are missing, at four seconds each.
    assert [row.full_at for row in spent] == [NOW + 12.0]
    rows = [StartedRow("acme", NOW, 1), StartedRow("reef", NOW, 2), StartedRow("acme", NOW + 60, 3)]
    assert started_of(rows) == {
        "acme": [OwnerStarts(NOW, 1), OwnerStarts(NOW + 60, 3)],
        "reef": [OwnerStarts(NOW, 2)],
    }
