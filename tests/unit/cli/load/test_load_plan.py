"""What a load sends, and when."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_cli.load.load_plan import DEFAULT_MIX, JobKind, LoadPlan, parse_mix, parse_priorities
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.messages.states import RunState


def plan(**changes: Any) -> LoadPlan:
    whole: dict[str, Any] = {
        "requests": 10,
        "mix": {JobKind.NOOP: 1},
        "priorities": {},
        "repositories": 3,
        "rate": None,
        **changes,
    }
    return LoadPlan(**whole)


def test_requests_are_numbered_and_spread_over_the_repositories() -> None:
    drawn = plan().drawn()
    assert [each.number for each in drawn] == list(range(1, 11))
    assert Counter(each.repository for each in drawn) == {1: 4, 2: 3, 3: 3}


def test_the_same_seed_draws_the_same_and_another_one_does_not() -> None:
    mix = parse_mix(DEFAULT_MIX)
    first, again, other = (plan(requests=200, mix=mix, seed=seed).drawn() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_shares_are_roughly_kept() -> None:
    kinds = Counter(each.kind for each in plan(requests=1000, mix=parse_mix(DEFAULT_MIX), seed=7).drawn())
    assert 700 < kinds[JobKind.NOOP] < 900
    assert 50 < kinds[JobKind.FAILING] < 150


def test_without_a_rate_all_are_due_at_once() -> None:
    assert {each.due_seconds for each in plan().drawn()} == {0.0}


@given(st.integers(1, 50), st.integers(1, 7), st.floats(0.1, 1000))
def test_bursts_come_at_the_mean_rate(requests: int, burst: int, rate: float) -> None:
    due = [each.due_seconds for each in plan(requests=requests, burst=burst, rate=rate).drawn()]
    assert due == sorted(due)
    assert max(Counter(due).values()) <= burst
    for number, moment in enumerate(due):
        assert moment == pytest.approx(number // burst * burst / rate)


def test_priorities_are_drawn_by_their_shares() -> None:
    drawn = plan(requests=100, priorities=parse_priorities("critical=1, default=1"), seed=3).drawn()
    assert {each.priority for each in drawn} == {Priority.CRITICAL, Priority.DEFAULT}
    assert {each.priority for each in plan().drawn()} == {None}


def test_a_failing_job_has_to_fail_and_a_flaky_one_to_succeed() -> None:
    assert JobKind.FAILING.expected is RunState.FAILED
    assert JobKind.FLAKY.expected is RunState.SUCCEEDED


@pytest.mark.parametrize(
    "text", ["noop", "noop=", "noop=x", "what=1", "noop=-1", "noop=1,noop=2", "noop=0", "noop=\u0661"]
)
def test_a_wrong_mix_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--mix"):
        parse_mix(text)
