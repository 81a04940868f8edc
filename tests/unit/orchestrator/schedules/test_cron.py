"""When ticks come: a table of clock changes, and properties of all expressions and zones."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.schedules.cron import MAX_LENGTH, NICKNAMES, InvalidCron, timing

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
WHOLE_HOURS: Final = ["UTC", BERLIN, NEW_YORK, "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Auckland"]
ZONES: Final = [*WHOLE_HOURS, LORD_HOWE, "Antarctica/Troll", "Pacific/Apia", "Asia/Kathmandu"]
EARLIEST, LATEST = datetime(2005, 1, 1, tzinfo=UTC).timestamp(), datetime(2035, 1, 1, tzinfo=UTC).timestamp()


def seconds(text: str, zone: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def shown(expression: str, zone: str, after: str, until: str) -> list[str]:
    """The ticks between two times on the wall, as it shows them with their offset."""
    found = timing(expression, zone).between(seconds(after, zone), seconds(until, zone))
    return [datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%d %H:%M%z") for at in found]


class TestWhereClocksAreSet:
    @pytest.mark.parametrize(
        ("zone", "after", "until", "ticks"),
        [
            pytest.param(
                BERLIN,
                "2026-03-29T00:59",
                "2026-03-29T04:30",
                ["29 01:00+0100", "29 03:00+0200", "29 04:00+0200"],
                id="an hour less in Berlin",
            ),
            pytest.param(
                BERLIN,
                "2026-10-25T00:59",
                "2026-10-25T03:30",
                ["25 01:00+0200", "25 02:00+0200", "25 02:00+0100", "25 03:00+0100"],
                id="an hour more in Berlin",
            ),
            pytest.param(
                NEW_YORK,
                "2026-03-08T00:59",
                "2026-03-08T04:30",
                ["08 01:00-0500", "08 03:00-0400", "08 04:00-0400"],
                id="an hour less in New York",
            ),
            pytest.param(
                NEW_YORK,
                "2026-11-01T00:30",
                "2026-11-01T02:30",
                ["01 01:00-0400", "01 01:00-0500", "01 02:00-0500"],
                id="an hour more in New York",
            ),
            pytest.param(
                LORD_HOWE,
                "2026-10-04T00:59",
                "2026-10-04T04:30",
                ["04 01:00+1030", "04 03:00+1100", "04 04:00+1100"],
                id="half an hour less on Lord Howe",
            ),
            pytest.param(
                LORD_HOWE,
                "2026-04-05T00:59",
                "2026-04-05T03:30",
                ["05 01:00+1100", "05 02:00+1030", "05 03:00+1030"],
                id="half an hour more on Lord Howe",
            ),
            pytest.param(
                "UTC",
                "2026-03-29T00:59",
                "2026-03-29T03:30",
                ["29 01:00+0000", "29 02:00+0000", "29 03:00+0000"],
                id="nothing in UTC",
            ),
        ],
    )
    def test_every_hour_is_every_hour_that_the_clock_shows(
        self, zone: str, after: str, until: str, ticks: Sequence[str]
    ) -> None:
        assert shown("0 * * * *", zone, after, until) == ticks

    @pytest.mark.parametrize(
        ("expression", "zone", "after", "until", "ticks"),
        [
            pytest.param(
                "30 2 * * *",
                BERLIN,
                "2026-03-28T00:00",
                "2026-03-30T12:00",
                ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"],
                id="never shown in Berlin",
            ),
            pytest.param(
                "0,15,30 2 * * *",
                BERLIN,
                "2026-03-29T00:00",
                "2026-03-29T12:00",
                ["29 03:00+0200"],
                id="all of a gap is one moment",
            ),
            pytest.param(
                "30 2 * * *",
                BERLIN,
                "2026-10-24T00:00",
                "2026-10-26T12:00",
                ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"],
                id="shown twice in Berlin",
            ),
            pytest.param(
                "30 2 * * *",
                NEW_YORK,
                "2026-03-07T00:00",
                "2026-03-09T12:00",
                ["07 02:30-0500", "08 03:00-0400", "09 02:30-0400"],
                id="never shown in New York",
            ),
            pytest.param(
                "30 1 * * *",
                NEW_YORK,
                "2026-10-31T00:00",
                "2026-11-02T12:00",
                ["31 01:30-0400", "01 01:30-0400", "02 01:30-0500"],
                id="shown twice in New York",
            ),
            pytest.param(
                "10 2 * * *",
                LORD_HOWE,
                "2026-10-03T00:00",
                "2026-10-05T12:00",
                ["03 02:10+1030", "04 02:30+1100", "05 02:10+1100"],
                id="never shown on Lord Howe",
            ),
            pytest.param(
                "45 1 * * *",
                LORD_HOWE,
                "2026-04-04T00:00",
                "2026-04-06T12:00",
                ["04 01:45+1100", "05 01:45+1100", "06 01:45+1030"],
                id="shown twice on Lord Howe",
            ),
            pytest.param(
                "30 12 * * *",
                "Pacific/Apia",
                "2011-12-29T00:00",
                "2011-12-31T23:00",
                ["29 12:30-1000", "31 00:00+1400", "31 12:30+1400"],
                id="a day that never was in Apia",
            ),
        ],
    )
    def test_once_a_day_is_once_a_day(
        self, expression: str, zone: str, after: str, until: str, ticks: Sequence[str]
    ) -> None:
        assert shown(expression, zone, after, until) == ticks

    @pytest.mark.parametrize(
        ("zone", "after", "until", "ticks"),
        [
            pytest.param(
                BERLIN,
                "2026-03-29T01:29",
                "2026-03-29T03:20",
                ["29 01:30+0100", "29 01:45+0100", "29 03:00+0200", "29 03:15+0200"],
                id="less",
            ),
            pytest.param(
                BERLIN,
                "2026-10-25T01:44",
                "2026-10-25T03:10",
                [
                    "25 01:45+0200",
                    *(f"25 02:{minute}+0200" for minute in ("00", "15", "30", "45")),
                    *(f"25 02:{minute}+0100" for minute in ("00", "15", "30", "45")),
                    "25 03:00+0100",
                ],
                id="more",
            ),
            pytest.param(
                LORD_HOWE,
                "2026-04-05T01:29",
                "2026-04-05T02:10",
                ["05 01:30+1100", "05 01:45+1100", "05 01:30+1030", "05 01:45+1030", "05 02:00+1030"],
                id="half an hour more",
            ),
            pytest.param(
                LORD_HOWE,
                "2026-10-04T01:29",
                "2026-10-04T02:50",
                ["04 01:30+1030", "04 01:45+1030", "04 02:30+1100", "04 02:45+1100"],
                id="half an hour less",
            ),
        ],
    )
    def test_every_quarter_goes_by_the_wall(
        self, zone: str, after: str, until: str, ticks: Sequence[str]
    ) -> None:
        assert shown("*/15 * * * *", zone, after, until) == ticks

    def test_no_hour_is_lost_where_clocks_are_set_by_half_an_hour(self) -> None:
        """As cronsim loses them (2.8), which is why it does not decide about zones."""
        spring = shown("40 * * * *", LORD_HOWE, "2026-10-04T01:00", "2026-10-04T04:00")
        assert spring == ["04 01:40+1030", "04 02:40+1100", "04 03:40+1100"]
        autumn = shown("0 */2 * * *", LORD_HOWE, "2026-04-05T00:05", "2026-04-05T05:00")
        assert autumn == ["05 02:00+1030", "05 04:00+1030"]

    def test_from_within_a_repeated_hour(self) -> None:
        second = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo(BERLIN)).timestamp()
        once, each = timing("30 2 * * *", BERLIN), timing("30 * * * *", BERLIN)
        assert once.after(second) == seconds("2026-10-26T02:30", BERLIN)
        assert each.after(second) == second + 20 * 60


class TestReading:
    @pytest.mark.parametrize(
        ("expression", "wrong"),
        [
            ("", "has 0 fields"),
            ("* * * *", "has 4 fields; write five"),
            ("* * * * * *", "has 6 fields; write five"),
            ("61 * * * *", "the 1st field, minute, is '61': write 0-59"),
            ("0 24 * * *", "the 2nd field, hour, is '24': write 0-23"),
            ("0 0 32 * *", "the 3rd field, day-of-month, is '32'"),
            ("0 0 1 13 *", "the 4th field, month, is '13': write 1-12, or JAN-DEC"),
            ("0 0 * * FRI-MON", "the 5th field, day-of-week, is 'FRI-MON'"),
            ("*/0 * * * *", "the 1st field, minute"),
            ("0 0 30 2 *", "never comes"),
            ("0 0 31 4,6,9,11 *", "never comes"),
            ("@reboot", "'@reboot' is not known here; known are @yearly"),
            ("1," * MAX_LENGTH + "1 * * * *", "characters, of at most"),
        ],
    )
    def test_mistakes_are_reported_with_their_places(self, expression: str, wrong: str) -> None:
        with pytest.raises(InvalidCron) as refused:
            timing(expression, "UTC")
        assert wrong in str(refused.value)

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("europe/berlin", "did you mean Europe/Berlin?"),
            ("Mars/Olympus", "like Europe/Berlin or UTC"),
            ("../../etc/passwd", "there is no time zone"),
            ("/etc/localtime", "there is no time zone"),
            ("", "there is no time zone"),
            ("right/UTC", "there is no time zone"),
        ],
    )
    def test_zones_have_iana_names(self, name: str, wrong: str) -> None:
        with pytest.raises(InvalidCron, match=wrong.replace("?", r"\?")):
            timing("@daily", name)

    @pytest.mark.parametrize("nickname", NICKNAMES)
    def test_a_nickname_is_what_it_stands_for(self, nickname: str) -> None:
        written, meant = timing(nickname, BERLIN), timing(NICKNAMES[nickname], BERLIN)
        assert written.text == nickname
        assert written.after(EARLIEST) == meant.after(EARLIEST)

    @pytest.mark.parametrize(
        ("expression", "first"),
        [
            ("0 0 29 2 *", "2028-02-29T00:00"),
            ("0 9 L * *", "2026-01-31T09:00"),
            ("0 9 * * FRI#1", "2026-01-02T09:00"),
            ("0 9 * * 5L", "2026-01-30T09:00"),
            ("0 9 13 * FRI", "2026-01-02T09:00"),
            ("5/20 * * * *", "2026-01-01T00:05"),
            ("  0   9 *  jan  sun ", "2026-01-04T09:00"),
        ],
    )
    def test_what_it_knows(self, expression: str, first: str) -> None:
        assert timing(expression, "UTC").after(seconds("2026-01-01T00:00", "UTC")) == seconds(first, "UTC")

    @given(text=st.text(max_size=60) | st.text("0123456789*/,-#LW@ FRIJANab", max_size=30), zone=st.text())
    def test_any_text_is_read_or_refused(self, text: str, zone: str) -> None:
        for name in ("UTC", zone):
            try:
                read = timing(text, name)
            except InvalidCron:
                continue
            assert read.after(EARLIEST) is not None


def test_zones_are_known_where_the_machine_knows_none() -> None:
    """As in slim images: Python's own copy of the database is used then."""
    code = "from solstice_orchestrator.schedules.cron import timing; print(timing('@daily', 'Europe/Berlin').after(0.0))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONTZPATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "82800.0\n"


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        numbers.map(str),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        st.lists(numbers, min_size=2, max_size=4).map(lambda found: ",".join(map(str, found))),
        st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


EXPRESSIONS: Final = st.tuples(
    fields(0, 59), fields(0, 23), st.just("*") | fields(1, 28), fields(1, 12), fields(0, 6)
).map(" ".join)
MOMENTS: Final = st.floats(EARLIEST, LATEST)


class TestAlways:
    @given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES), start=MOMENTS)
    def test_ticks_strictly_grow_and_none_lies_between(
        self, expression: str, zone: str, start: float
    ) -> None:
        when = timing(expression, zone)
        at = start
        for _ in range(8):
            tick = when.after(at)
            assert tick is not None
            assert tick > at
            # From any moment before it, the same tick is next; half way may be the tick itself, rounded.
            assert when.after(min((at + tick) / 2, math.nextafter(tick, at))) == tick
            assert when.after(tick - 1) == tick
            at = tick
        assert when.newest(start, at) == at

    @given(expression=EXPRESSIONS, zone=st.sampled_from(WHOLE_HOURS), start=MOMENTS)
    def test_where_clocks_are_set_by_whole_hours_cronsim_says_the_same(
        self, expression: str, zone: str, start: float
    ) -> None:
        # Begun before and apart from any hour that comes twice, where it forgets which one it is in.
        begin = datetime.fromtimestamp(start, ZoneInfo(zone)).replace(
            hour=12, minute=0, second=0, microsecond=0
        )
        of_cronsim = CronSim(expression, begin)
        own_ticks = timing(expression, zone).between(
            begin.timestamp(), (begin + timedelta(days=40_000)).timestamp()
        )
        last = begin.timestamp()
        for _ in range(8):
            tick = next(of_cronsim).timestamp()
            while tick <= last:
                # A gap is one moment.
                tick = next(of_cronsim).timestamp()
            assert next(own_ticks) == tick
            last = tick

    @given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES), start=MOMENTS)
    def test_the_clock_shows_what_is_written_except_behind_a_gap(
        self, expression: str, zone: str, start: float
    ) -> None:
        when, plain = timing(expression, zone), timing(expression, "UTC")
        at = start
        for _ in range(4):
            tick = when.after(at)
            assert tick is not None
            wall = datetime.fromtimestamp(tick, ZoneInfo(zone)).replace(tzinfo=UTC).timestamp()
            before = datetime.fromtimestamp(tick - 1, ZoneInfo(zone)).replace(tzinfo=UTC).timestamp()
            matches = plain.after(wall - 1) == wall
            assert matches or wall - before > 1
            at = tick
