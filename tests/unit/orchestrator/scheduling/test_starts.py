"""What a claim leaves of rates, caps and quotas: whatever starts takes its token, and of an owner it is counted."""

import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.quotas import OwnerStarts, Quotas
from solstice_orchestrator.scheduling.rates import Bucket, BucketKey, BucketScope, StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartBudget, StartLimits

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
        turn=0,
        waiting_since=0.0,
    )


def test_every_start_takes_a_token_of_its_label_and_one_of_its_repository() -> None:
    starts = StartBudget(limits=StartLimits(rates=BOTH), now=NOW)
    chosen = [candidate("a"), candidate("b", repository="reef/tide"), candidate("c", label="illumos")]
    left = {(row.scope, row.name): row.amount for row in starts.spent(chosen, NOW)}
    assert left == {(BucketScope.LABEL, "linux"): 5 - 2, (BucketScope.REPOSITORY, "acme/app"): 4 - 2}


def test_no_more_start_than_there_are_tokens_for() -> None:
    buckets = {
        BucketKey(BucketScope.LABEL, "linux"): Bucket(2.0, NOW),
        BucketKey(BucketScope.REPOSITORY, "acme/app"): Bucket(1.0, NOW),
    }
    starts = StartBudget(limits=StartLimits(rates=BOTH), buckets=buckets, now=NOW)
    assert starts.fit({"linux": 3, "illumos": 7}) == {"linux": 2, "illumos": 7}
    assert starts.room(["acme/app", "reef/tide"], ["acme"]).repositories == {"acme/app": 1}


def test_of_two_limits_the_tighter_holds() -> None:
    limits = StartLimits(caps=Caps(of={"acme/app": 3}), rates=BOTH)
    assert StartBudget(limits=limits, running={"acme/app": 1}, now=NOW).room(
        ["acme/app"], []
    ).repositories == {"acme/app": 2}
    assert StartBudget(limits=limits, running={}, now=NOW).room(["acme/app"], []).repositories == {
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
