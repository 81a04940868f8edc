"""Waits after failures double up to a cap, with full jitter."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.runtime.backoff import backoff_seconds


class Highest(random.Random):
    """A generator that always draws the upper end."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0.0
        return b


@pytest.mark.parametrize(
    ("failures", "ceiling"), [(0, 0.5), (1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (10**6, 30.0)]
)
def test_the_ceiling_doubles_with_every_failure_up_to_the_cap(failures: int, ceiling: float) -> None:
    assert backoff_seconds(failures, rng=Highest(), base_seconds=0.5, cap_seconds=30.0) == ceiling


@given(st.integers(min_value=0), st.integers())
def test_the_jitter_is_full(failures: int, seed: int) -> None:
    drawn = backoff_seconds(failures, rng=random.Random(seed), base_seconds=1.0, cap_seconds=8.0)
    assert 0.0 <= drawn <= min(8.0, 2.0 ** min(failures, 10))


def test_two_processes_do_not_come_back_in_step() -> None:
    first, second = random.Random(1), random.Random(2)
    pauses = [backoff_seconds(3, rng=rng, base_seconds=1.0, cap_seconds=8.0) for rng in (first, second)]
    assert pauses[0] != pauses[1]
