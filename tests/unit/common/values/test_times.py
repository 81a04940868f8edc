"""Timestamps are read and written in UTC."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.values.times import (
    absolute,
    age,
    age_seconds,
    ago,
    ahead,
    duration,
    format_seconds,
    format_timestamp,
    parse_timestamp,
)


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-01-31T12:00:00Z", 0),
        ("2026-01-31t12:00:00z", 0),
        ("2026-01-31T12:00:00.5Z", 500_000),
        ("2026-01-31T12:00:00.000001Z", 1),
        ("2026-01-31T12:00:00.123456789Z", 123_456),
        ("2026-01-31T12:00:00+00:00", 0),
    ],
)
def test_timestamp_is_read_to_the_microsecond(text: str, microsecond: int) -> None:
    assert parse_timestamp(text) == datetime(2026, 1, 31, 12, microsecond=microsecond, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "now", "2026-02-30T12:00:00Z"])
def test_timestamp_that_is_no_moment_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_timestamp(text)


def test_timestamp_is_written_in_utc_with_milliseconds() -> None:
    moment = datetime(2026, 1, 31, 13, 0, 0, 7999, tzinfo=timezone(timedelta(hours=1)))
    assert format_timestamp(moment) == "2026-01-31T12:00:00.007Z"


@given(st.integers(0, 4_000_000_000_000))
def test_seconds_are_written_as_the_moment_that_they_are(milliseconds: int) -> None:
    text = format_seconds(milliseconds / 1000)
    # A float of seconds may lie just below its millisecond.
    assert milliseconds - round(parse_timestamp(text).timestamp() * 1000) in {0, 1}
    assert text == format_timestamp(parse_timestamp(text))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000.0), ("12h", 43_200.0), ("90m", 5_400.0), ("60s", 60.0), ("0s", 0.0)],
)
def test_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert age_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "1.5h", "-1d", "1w", "1d12h", "1234567s", " 1d"])
def test_what_is_no_age_is_reported_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is no age; write 30d, 12h, 90m or 60s"):
        age_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3.0, "0 s"),
        (0.0, "0 s"),
        (0.04, "0.0 s"),
        (0.44, "0.4 s"),
        (9.99, "9.9 s"),
        (10.0, "10 s"),
        (59.9, "59 s"),
        (60.0, "1 min 0 s"),
        (185.0, "3 min 5 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 0 min"),
        (7500.0, "2 h 5 min"),
        (86_399.0, "23 h 59 min"),
        (86_400.0, "1 d 0 h"),
        (90_061.0, "1 d 1 h"),
    ],
)
def test_duration_is_shown_in_the_two_units_that_matter(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3.0, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (3599.0, "59 min"),
        (3600.0, "1 h"),
        (86_399.0, "23 h"),
        (86_400.0, "1 d"),
        (300_000.0, "3 d"),
    ],
)
def test_age_is_in_the_largest_unit_that_fits(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3.0, "just now"), (0.9, "just now"), (1.0, "1 s ago"), (119.0, "1 min ago")]
)
def test_what_was_less_than_a_second_ago_is_just_now(seconds: float, shown: str) -> None:
    assert ago(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3.0, "now"), (0.9, "now"), (1.0, "in 1.0 s"), (8040.0, "in 2 h 14 min")]
)
def test_what_is_less_than_a_second_ahead_is_now(seconds: float, shown: str) -> None:
    assert ahead(seconds) == shown


def test_a_moment_for_people_is_in_utc_to_the_second() -> None:
    assert absolute(1_769_860_801.5) == "2026-01-31 12:00:01 UTC"


def test_moment_is_written_in_utc_for_any_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert format_seconds(1_769_860_801.5) == "2026-01-31T12:00:01.500Z"
    finally:
        monkeypatch.undo()
        time.tzset()
