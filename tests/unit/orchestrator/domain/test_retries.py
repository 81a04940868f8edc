"""Which failures are tried again, how often, and after which wait."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, Reason
from solstice_orchestrator.domain.retries import (
    UNCOUNTED_MAX_SECONDS,
    RetryPolicies,
    RetryPolicy,
    parse_label_retries,
)

DEFAULT = RetryPolicy()


@pytest.mark.parametrize("reason", sorted(set(Reason) - INFRASTRUCTURE))
def test_nothing_but_the_world_is_tried_again(reason: Reason) -> None:
    assert DEFAULT.next_retry(1, reason, random.Random(1)) is None


@pytest.mark.parametrize("most", [1, MAX_ATTEMPTS, 7])
@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
def test_the_world_is_tried_again_until_the_budget_is_spent(reason: Reason, most: int) -> None:
    policy, rng = RetryPolicy(max_attempts=most), random.Random(1)
    waits = [policy.next_retry(used, reason, rng) for used in range(1, most + 2)]
    assert [wait is None for wait in waits] == [False] * (most - 1) + [True, True]


@given(st.integers(1, 99), st.integers(0, 2**32), st.floats(0, 300), st.floats(0, 1))
def test_the_wait_is_its_ceiling_less_the_share_that_is_drawn(
    used: int, seed: int, base: float, jitter: float
) -> None:
    policy = RetryPolicy(max_attempts=100, base_seconds=base, jitter=jitter)
    wait, ceiling = (
        policy.next_retry(used, Reason.AGENT_LOST, random.Random(seed)),
        policy.backoff_ceiling(used),
    )
    assert wait is not None
    assert ceiling * (1 - jitter) <= wait <= ceiling <= policy.max_seconds


def test_without_jitter_every_wait_is_the_longest() -> None:
    policy = RetryPolicy(max_attempts=9, base_seconds=2.0, max_seconds=10.0, jitter=0.0)
    rng = random.Random(5)
    assert [policy.next_retry(used, Reason.AGENT_LOST, rng) for used in (1, 2, 3, 4, 8)] == [2, 4, 8, 10, 10]


def test_the_ceiling_doubles_up_to_its_maximum_however_many_failures() -> None:
    ceilings = [DEFAULT.backoff_ceiling(failures) for failures in (1, 2, 3, 4, 7, 10_000)]
    assert ceilings == [5, 10, 20, 40, 300, 300]


def test_two_that_failed_together_do_not_come_back_together() -> None:
    waits = {DEFAULT.next_retry(1, Reason.AGENT_LOST, random.Random(seed)) for seed in range(50)}
    assert len(waits) == 50


@pytest.mark.parametrize(
    ("tries", "longest"),
    [(1, 5.0), (2, 10.0), (4, 40.0), (5, UNCOUNTED_MAX_SECONDS), (9, UNCOUNTED_MAX_SECONDS)],
)
def test_what_spends_no_attempt_waits_longer_each_time_up_to_a_minute(tries: int, longest: float) -> None:
    waits = [DEFAULT.uncounted_wait(tries, random.Random(seed)) for seed in range(50)]
    assert longest / 2 <= min(waits) < max(waits) <= longest


def test_a_label_has_a_policy_of_its_own_and_what_it_leaves_out_is_the_defaults() -> None:
    default = RetryPolicy(base_seconds=2.0, jitter=0.5)
    labels = parse_label_retries("illumos=5:30:600:0.1, arm=1,mac=2:4", default)
    policies = RetryPolicies(default=default, labels=labels)
    assert policies.of("illumos") == RetryPolicy(max_attempts=5, base_seconds=30, max_seconds=600, jitter=0.1)
    assert policies.of("arm") == RetryPolicy(max_attempts=1, base_seconds=2.0, jitter=0.5)
    assert policies.of("mac") == RetryPolicy(max_attempts=2, base_seconds=4.0, jitter=0.5)
    assert policies.of("linux") is default


@pytest.mark.parametrize(
    "text",
    [
        "arm",
        "arm=",
        "arm=0",
        "arm=101",
        "arm=2:-1",
        "arm=2:9:3",
        "arm=2:1:2:1.5",
        "arm=1,arm=2",
        "=3",
        "arm=2:1:99999",
    ],
)
def test_a_wrong_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"arm|=3"):
        parse_label_retries(text, DEFAULT)
