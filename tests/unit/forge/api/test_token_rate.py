"""The API's token bucket never exceeds its size, and refills at its rate."""

import math

from hypothesis import given
from hypothesis import strategies as st

from solstice_forge.api.token_rate import TokenBucket, headers_of, take

RATES = st.integers(1, 10_000)


def test_as_many_at_once_as_in_a_minute() -> None:
    bucket, allowed = None, []
    for _ in range(4):
        decision = take(bucket, per_minute=3, now=100.0)
        bucket = decision.bucket
        allowed.append((decision.allowed, decision.remaining, decision.wait_seconds))
    assert allowed == [(True, 2, 20), (True, 1, 20), (True, 0, 20), (False, 0, 20)]


def test_the_wait_is_long_enough() -> None:
    empty = take(TokenBucket(amount=0.5, at=0.0), per_minute=6, now=0.0)
    assert (empty.allowed, empty.wait_seconds) == (False, 5)
    assert take(empty.bucket, per_minute=6, now=5.0).allowed


@given(RATES, st.lists(st.floats(0, 30), max_size=200))
def test_never_more_than_the_burst_and_the_rate(per_minute: int, pauses: list[float]) -> None:
    bucket, now, decision = None, 0.0, 0
    for pause in pauses:
        now += pause
        outcome = take(bucket, per_minute=per_minute, now=now)
        bucket, decision = outcome.bucket, decision + outcome.allowed
        assert 0 <= outcome.remaining < per_minute or not outcome.allowed
    assert decision <= per_minute + math.ceil(now * per_minute / 60) + 1


@given(RATES, st.floats(0, 1e9), st.floats(0, 0.999))
def test_a_caller_that_waits_as_advised_is_admitted(per_minute: int, now: float, amount: float) -> None:
    refused = take(TokenBucket(amount=amount, at=now), per_minute=per_minute, now=now)
    assert not refused.allowed
    assert take(refused.bucket, per_minute=per_minute, now=now + refused.wait_seconds + 1e-3).allowed


def test_headers_give_the_policy_and_the_remaining_requests() -> None:
    first = take(None, per_minute=2, now=0.0)
    assert headers_of(first, per_minute=2) == {
        "RateLimit-Policy": '"token";q=2;w=60',
        "RateLimit": '"token";r=1;t=30',
    }
    last = take(take(first.bucket, per_minute=2, now=0.0).bucket, per_minute=2, now=0.0)
    assert headers_of(last, per_minute=2)["Retry-After"] == "30"
