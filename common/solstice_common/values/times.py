"""Parses and writes timestamps (RFC 3339, UTC) and ages. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_AGE: Final = re.compile(r"([0-9]{1,6})([dhms])")
_MINUTE, _HOUR = 60, 3600
_UNIT_SECONDS: Final[Mapping[str, float]] = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def parse_timestamp(text: str) -> datetime:
    """The moment of an RFC 3339 time in UTC, to the microsecond.

    ValueError when there is no such moment.
    """
    moment = datetime.fromisoformat(text[:19].upper()).replace(tzinfo=UTC)
    fraction = re.match(r"\.([0-9]+)", text[19:])
    return moment.replace(microsecond=int(fraction[1][:6].ljust(6, "0"))) if fraction else moment


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds: `2026-01-31T12:00:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_seconds(seconds: float) -> str:
    """`format_timestamp` of a moment given in seconds since the epoch."""
    second, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{_to_the_second(second)}.{milliseconds:03d}Z"


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def age_seconds(text: str) -> float:
    """`30d`, `12h`, `90m` or `60s` in seconds; ValueError for anything else."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no age; write 30d, 12h, 90m or 60s")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def duration(seconds: float) -> str:
    """A duration for people, such as `0.4 s`, `12 s`, `3 min 05 s`.

    From an hour on it is `2 h 05 min`.
    """
    if seconds < 10:  # noqa: PLR2004  below ten a digit more is worth showing
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
