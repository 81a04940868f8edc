"""Moments and spans of time as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.values.delays import MAX_DELAY, parse_delay, parse_moment, too_far
from solstice_common.values.times import format_timestamp

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "in_utc"),
    [
        ("2026-01-31T21:00:00Z", "2026-01-31T21:00:00.000Z"),
        ("2026-01-31t21:00:00z", "2026-01-31T21:00:00.000Z"),
        ("2026-01-31T22:00:00+01:00", "2026-01-31T21:00:00.000Z"),
        ("2026-02-01T03:15:00.25+05:45", "2026-01-31T21:30:00.250Z"),
        ("2026-01-31T21:00:00-00:00", "2026-01-31T21:00:00.000Z"),
        ("2025-12-31T20:00:00.123456789-08:00", "2026-01-01T04:00:00.123Z"),
    ],
)
def test_a_moment_of_any_offset_is_one_in_utc(text: str, in_utc: str) -> None:
    assert format_timestamp(parse_moment(text)) == in_utc
    assert parse_moment(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tonight",
        "22:00",
        "2026-01-31",
        "2026-01-31T21:00:00",
        "2026-01-31 21:00:00Z",
        "2026-02-30T21:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31T21:00:60Z",
        "2026-01-31T21:00:00+24:00",
        "2026-01-31T21:00:00+01",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-01-31T21:00:00Z\n",
        "\N{FULLWIDTH DIGIT TWO}026-01-31T21:00:00Z",
    ],
)
def test_what_names_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be an RFC 3339 time|is no moment"):
        parse_moment(text)


@given(
    st.datetimes(min_value=datetime(1970, 1, 3), max_value=datetime(2200, 1, 1)),  # noqa: DTZ001  it is given one below
    st.integers(-1439, 1439),
)
def test_every_moment_is_read_as_it_is_written(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_moment(moment.isoformat(timespec="microseconds")) == moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("30s", 30), ("15m", 900), ("2h", 7200), ("1d", 86400), ("366d", 366 * 86400)],
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert parse_delay(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "-5", "1.5h", "2 h", "1w", "1h30m", "\N{ARABIC-INDIC DIGIT THREE}", "1" * 10, "2H"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 15m, 2h or 1d"):
        parse_delay(text)


def test_a_day_longer_than_the_longest_year_is_too_far() -> None:
    assert not too_far(NOW + MAX_DELAY, NOW)
    assert too_far(NOW + MAX_DELAY + timedelta(milliseconds=1), NOW)
    assert not too_far(NOW - timedelta(days=1000), NOW)
