"""What a handler answers about a delivery, and when a retried one comes again."""

import random

import pytest

from solstice_common.broker.delivery import Refuse, retry_seconds, unreadable


class Longest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class Shortest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return min(a, b)


@pytest.mark.parametrize(
    ("earlier_deliveries", "longest"), [(0, 0.2), (1, 0.4), (2, 0.8), (8, 51.2), (9, 60.0), (10**9, 60.0)]
)
def test_retried_delivery_waits_twice_as_long_each_time_up_to_a_minute(
    earlier_deliveries: int, longest: float
) -> None:
    assert retry_seconds(earlier_deliveries, Longest()) == pytest.approx(longest)
    assert retry_seconds(earlier_deliveries, Shortest()) == 0.0


def test_delivery_that_triggers_a_bug_is_refused_with_the_beginning_of_the_error() -> None:
    assert unreadable(LookupError("no such key")) == Refuse(
        reason="internal_error", detail="LookupError: no such key"
    )
    assert len(unreadable(LookupError("x" * 2000)).detail) == 1000
