"""Which failures are tried again, how often, and after which wait."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, Reason
from solstice_orchestrator.domain.retries import (
    RETRY_CAP_SECONDS,
    UNCOUNTED_CAP_SECONDS,
    backoff_ceiling,
    next_retry,
    uncounted_wait,
)


@pytest.mark.parametrize("reason", sorted(set(Reason) - INFRASTRUCTURE))
def test_nothing_but_the_world_is_tried_again(reason: Reason) -> None:
    assert next_retry(1, reason, random.Random(1)) is None


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
def test_the_world_is_tried_again_until_the_budget_is_spent(reason: Reason) -> None:
    rng = random.Random(1)
    waits = [next_retry(used, reason, rng) for used in range(1, MAX_ATTEMPTS + 2)]
    assert [wait is None for wait in waits] == [False] * (MAX_ATTEMPTS - 1) + [True, True]


@given(st.integers(1, MAX_ATTEMPTS - 1), st.integers(0, 2**32), st.floats(0, 1e6))
def test_the_wait_is_anything_up_to_the_ceiling(used: int, seed: int, base: float) -> None:
    wait = next_retry(used, Reason.AGENT_LOST, random.Random(seed), base_seconds=base)
    assert wait is not None
    assert 0.0 <= wait <= backoff_ceiling(used, base) <= RETRY_CAP_SECONDS


def test_the_ceiling_doubles_up_to_its_cap_however_many_failures() -> None:
    assert [backoff_ceiling(failures, 5.0) for failures in (1, 2, 3, 4, 7, 10_000)] == [
        5,
        10,
        20,
        40,
        300,
        300,
    ]


def test_two_that_failed_together_do_not_come_back_together() -> None:
    waits = {next_retry(1, Reason.AGENT_LOST, random.Random(seed)) for seed in range(50)}
    assert len(waits) == 50


@pytest.mark.parametrize(
    ("tries", "longest"),
    [(1, 5.0), (2, 10.0), (4, 40.0), (5, UNCOUNTED_CAP_SECONDS), (9, UNCOUNTED_CAP_SECONDS)],
)
def test_what_spends_no_attempt_waits_longer_each_time_up_to_a_minute(tries: int, longest: float) -> None:
    waits = [uncounted_wait(tries, random.Random(seed)) for seed in range(50)]
    assert longest / 2 <= min(waits) < max(waits) <= longest
    assert len(set(waits)) == 50
