"""Token buckets: reading the settings, and never more nor fewer starts than the rate."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.rates import (
    Rate,
    RateBucket,
    after_starts,
    full_at,
    parse_rates,
    seconds_until,
    startable,
    token_at,
    tokens,
)

TEN = Rate(text="10/s:20", per_second=10.0, burst=20)
NOW = 1_800_000_000.0

rates = st.builds(
    lambda starts, unit, burst: Rate(text="", per_second=starts / unit, burst=burst),
    st.integers(1, 1000),
    st.sampled_from([1, 60, 3600]),
    st.integers(1, 50),
)
visits = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 60)), max_size=40)
"""The time since the previous claim, and the number of waiting jobs."""


def flood(rate: Rate, visitors: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """How many jobs start at each claim."""
    bucket, now, started = None, NOW, []
    for pause, waiting in visitors:
        now += pause
        count = min(waiting, startable(bucket, rate, now))
        bucket = after_starts(bucket, rate, now, count)
        started.append((now, count))
    return started


class TestParse:
    @pytest.mark.parametrize(
        ("text", "name", "per_second", "burst"),
        [
            ("linux=10/s:20", "linux", 10.0, 20),
            ("linux=10/s", "linux", 10.0, 10),
            ("linux=60/m", "linux", 1.0, 1),
            ("linux=90/h:5", "linux", 0.025, 5),
            ("linux=24/d", "linux", 24 / 86400, 1),
            (" linux=1/s , *=2/s:3 ", "illumos", 2.0, 3),
            ("acme/app=1/s,*=2/s", "acme/app", 1.0, 1),
        ],
    )
    def test_a_rate_is_read(self, text: str, name: str, per_second: float, burst: int) -> None:
        rate = parse_rates(text).rate(name)
        assert rate is not None
        assert (rate.per_second, rate.burst) == (per_second, burst)

    def test_who_is_not_named_has_none(self) -> None:
        rates = parse_rates("linux=10/s")
        assert rates.any
        assert rates.rate("illumos") is None
        assert not parse_rates(" ").any

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [
            ("linux", "is not NAME=STARTS/UNIT"),
            ("linux=10", "is not NAME=STARTS/UNIT"),
            ("linux=10/w", "is not NAME=STARTS/UNIT"),
            ("linux=10/s:burst20", "is not NAME=STARTS/UNIT"),
            ("linux=0/s", "lets nothing start"),
            ("linux=1/s:0", "lets nothing start"),
            ("linux=1/s,linux=2/s", "twice"),
        ],
    )
    def test_mistakes_are_reported(self, text: str, wrong: str) -> None:
        with pytest.raises(ValueError, match=wrong):
            parse_rates(text)


class TestBucket:
    @pytest.mark.parametrize(
        ("bucket", "later", "expected"),
        [
            (None, 0.0, 20.0),
            (RateBucket(0.0, NOW), 0.0, 0.0),
            (RateBucket(0.0, NOW), 0.5, 5.0),
            (RateBucket(0.0, NOW), 100.0, 20.0),
            (RateBucket(3.5, NOW), 0.25, 6.0),
            (RateBucket(3.5, NOW), -50.0, 3.5),
        ],
        ids=["new", "empty", "half a second", "full again", "some", "clock set back"],
    )
    def test_it_fills_steadily_up_to_its_burst(
        self, bucket: RateBucket | None, later: float, expected: float
    ) -> None:
        assert tokens(bucket, TEN, NOW + later) == expected
        assert startable(bucket, TEN, NOW + later) == int(expected)

    def test_a_clock_that_was_set_back_delays_no_job(self) -> None:
        bucket = after_starts(RateBucket(20.0, NOW), TEN, NOW - 3600, 20)
        assert startable(bucket, TEN, NOW - 3600) == 0
        assert startable(bucket, TEN, NOW - 3599) == 10

    def test_when_to_look_again(self) -> None:
        assert token_at(RateBucket(0.5, NOW), TEN) == pytest.approx(NOW + 0.05)
        assert token_at(RateBucket(3.0, NOW), TEN) == NOW
        assert seconds_until(0.5, TEN, 11) == pytest.approx(1.05)

    @given(rates, visits)
    def test_never_more_than_rate_and_burst_in_any_window(
        self, rate: Rate, visitors: list[tuple[float, int]]
    ) -> None:
        started = flood(rate, visitors)
        for first, (begin, _) in enumerate(started):
            total = 0
            for end, count in started[first:]:
                total += count
                assert total <= rate.per_second * (end - begin) + rate.burst + 1e-6

    @given(rates, visits)
    def test_no_job_waits_while_there_are_tokens(self, rate: Rate, visitors: list[tuple[float, int]]) -> None:
        started = flood(rate, visitors)
        bucket: RateBucket | None = None
        for (now, count), (_, waiting) in zip(started, visitors, strict=True):
            available = tokens(bucket, rate, now)
            assert count == waiting or count > available - 1
            bucket = after_starts(bucket, rate, now, count)

    @given(rates, st.integers(1, 200))
    def test_a_flood_gets_all_of_the_rate(self, rate: Rate, steps: int) -> None:
        """Claims exactly when a token is there get the full rate and burst."""
        # A token is no sooner there than the clock can tell.
        lateness = 1e-6
        started = flood(rate, [(0.0, 10**6), *[(1 / rate.per_second + lateness, 10**6)] * steps])
        assert started[0][1] == rate.burst
        assert all(count >= 1 for _, count in started)
        assert sum(count for _, count in started) <= rate.burst + steps * (1 + 2 * lateness * rate.per_second)

    @given(rates, st.floats(0, 50), st.floats(0, 1e5))
    def test_a_row_that_says_nothing_may_go(self, rate: Rate, amount: float, later: float) -> None:
        bucket = RateBucket(min(amount, rate.burst), NOW)
        at = full_at(bucket, rate)
        assert tokens(bucket, rate, at + later) == pytest.approx(rate.burst, abs=1e-3)
