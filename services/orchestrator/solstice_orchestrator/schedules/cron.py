"""Cron expressions in a time zone: the times of their ticks. Pure.

cronsim reads an expression and gives the matching local times. This module decides which moments those are in a zone,
by the rules of Debian's cron (crontab(5), cron(8), "Daylight Saving Time and other time changes"):

* An expression whose minute or hour begins with a star follows the clock on the wall: a local time that comes twice
  fires twice, and one that is skipped never fires.
* Any other is due once a day: at the end of the gap when its time is skipped, and the first time when it comes twice.

cronsim's own rules for zones lose ticks where clocks are set by half an hour (decision 27).
"""

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

MAX_LENGTH: Final = 200
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, or L for the last",
    "month": "1-12, or JAN-DEC",
    "day-of-week": "0-7, or SUN-SAT, where 0 and 7 are Sunday; FRI#1 for the first, 5L for the last Friday",
}
_ORDINALS: Final = ("1st", "2nd", "3rd", "4th", "5th", "6th")
_SECOND: Final = timedelta(seconds=1)
_HOUR_SECONDS: Final = 3600
"""No zone changes its offset twice within this time."""
_SPAN_SECONDS: Final = 2 * 86_400
"""Longer than any zone was ever set back: the clock shows later times later."""


class InvalidCron(ValueError):
    """The expression or the zone is invalid; the message says why, and what is valid."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times at which a schedule is due; made by `timing`."""

    text: str
    """Five fields, or a nickname, as written."""
    zone: ZoneInfo
    _wall: CronSim = field(repr=False, compare=False)
    _once_a_day: bool = field(repr=False, compare=False)

    def after(self, moment: float) -> float | None:
        """Return the first tick after the moment; None: none within fifty years.

        Both are in seconds since the epoch.
        """
        last = math.floor(moment)
        tick = self._once(last) if self._once_a_day else self._by_the_wall(last + 1)
        return None if tick is None else float(tick)

    def between(self, after: float, until: float) -> Iterator[float]:
        """Yield every tick after `after` and not after `until`."""
        tick = self.after(after)
        while tick is not None and tick <= until:
            yield tick
            tick = self.after(tick)

    def newest(self, after: float, until: float) -> float | None:
        """Return the last tick of `between`, found from its end."""
        span = float(_HOUR_SECONDS)
        while True:
            start = max(after, until - span)
            *_, tick = (None, *self.between(start, until))
            if tick is not None or start == after:
                return tick
            span *= 8

    def _once(self, last: int) -> int | None:
        """Return the tick for an expression that is due once a day.

        Local times grow, and so do the moments at which a clock first shows them.
        """
        for wall in self._shown(self._local(last)):
            moment = self._first_at(wall)
            if moment > last:
                return moment
        return None

    def _by_the_wall(self, first: int) -> int | None:
        """Return the tick for an expression that follows the clock on the wall.

        Between two changes of its offset a zone is as simple as UTC.
        """
        while True:
            wall: datetime | None = next(self._shown(self._local(first) - _SECOND), None)
            if wall is None:
                return None
            tick = _seconds(wall) - self._offset(first)
            end = min(tick, first + _SPAN_SECONDS)
            change = self._change(first, end)
            if change is not None:
                first = change
            elif tick <= end:
                return tick
            else:
                first = max(end, tick - _SPAN_SECONDS)

    def _shown(self, after: datetime) -> Iterator[datetime]:
        """Matching times after `after`, on a clock that is never set."""
        walls = copy.copy(self._wall)
        walls.dt = after
        return walls

    def _first_at(self, wall: datetime) -> int:
        """When a clock on the wall first shows that time, or is set past it."""
        moment = int(wall.replace(tzinfo=self.zone).timestamp())
        if self._local(moment) == wall:
            return moment
        before = int(wall.replace(tzinfo=self.zone, fold=1).timestamp())
        return self._change(before, moment) or moment

    def _change(self, first: int, end: int) -> int | None:
        """The earliest change of the offset after `first` and not after `end`; None: no change."""
        offset = self._offset(first)
        hours: list[int] = [*range(first, end, _HOUR_SECONDS), end]
        for low, high in pairwise(hours):
            if self._offset(high) != offset:
                same, other = low, high
                while other - same > 1:
                    middle = (same + other) // 2
                    same, other = (middle, other) if self._offset(middle) == offset else (same, middle)
                return other
        return None

    def _offset(self, moment: int) -> int:
        return _seconds(self._local(moment)) - moment

    def _local(self, moment: int) -> datetime:
        return datetime.fromtimestamp(moment, self.zone).replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1024)
def timing(text: str, zone: str, *, seconds: bool = False) -> Timing:
    """Read an expression of five fields or a nickname, and an IANA time zone.

    Raises InvalidCron. With `seconds` there may be six fields, of which the first is the second: so tests need not wait
    for minutes.
    """
    written = " ".join(text.split())
    wall = _parsed(NICKNAMES.get(written.lower(), written), written, seconds=seconds)
    if next(copy.copy(wall), None) is None:
        raise InvalidCron(f"{written!r} never comes within fifty years")
    minute, hour = wall.parts[1:3]
    return Timing(
        text=written,
        zone=_zone(zone),
        _wall=wall,
        _once_a_day=not minute.startswith("*") and not hour.startswith("*"),
    )


def _parsed(expression: str, written: str, *, seconds: bool) -> CronSim:
    fields = expression.split()
    if written.startswith("@") and expression is written:
        raise InvalidCron(f"{written[:40]!r} is not known here; known are {', '.join(NICKNAMES)}")
    if len(written) > MAX_LENGTH:
        raise InvalidCron(f"it has {len(written)} characters, of at most {MAX_LENGTH}")
    if len(fields) != 5 and not (seconds and len(fields) == 6):  # noqa: PLR2004  fields of cron
        raise InvalidCron(
            f"{written!r} has {len(fields)} fields; write five: minute hour day-of-month month day-of-week,"
            " as in '30 2 * * MON-FRI'"
        )
    try:
        # Start in a leap year, independent of the current time.
        return CronSim(expression, datetime(2024, 1, 1))  # noqa: DTZ001  a clock on the wall
    except CronSimError as error:
        raise InvalidCron(_sentence(str(error), fields)) from None


def _sentence(error: str, fields: list[str]) -> str:
    """The library's error as text that says which field is wrong and what is valid."""
    name = error.removeprefix("Bad ")
    if name not in _FIELDS:
        return error
    if name == "day-of-month" and _is_day(fields[-3]):
        return f"{' '.join(fields)!r} never comes: no such month has such a day"
    index = [*_FIELDS][-len(fields) :].index(name)
    return (
        f"the {_ORDINALS[index]} field, {name}, is {fields[index][:40]!r}: write {_FIELDS[name]}; lists (1,2), ranges"
        " (1-5) and steps (*/15) of these"
    )


def _is_day(text: str) -> bool:
    """Return whether any month has this day."""
    try:
        CronSim(f"0 0 {text} * *", datetime(2024, 1, 1))  # noqa: DTZ001  a clock on the wall
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone(name: str) -> ZoneInfo:
    if re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name) is None or name not in _zones():
        alike = [known for known in sorted(_zones()) if known.lower() == name.lower()]
        raise InvalidCron(
            f"there is no time zone {name[:64]!r}; "
            + (f"did you mean {alike[0]}?" if alike else "write its IANA name, like Europe/Berlin or UTC")
        )
    return ZoneInfo(name)


def _seconds(wall: datetime) -> int:
    """Return the seconds of a local time as if it were UTC."""
    return int(wall.replace(tzinfo=UTC).timestamp())
