"""Parses the moments and delays that people write for a later start. Pure."""

import re
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

MAX_DELAY: Final = timedelta(days=366)
"""The latest start that is accepted.

A later one is probably a typing error, and would stay here forever.
"""
CLOCK_TOLERANCE: Final = timedelta(days=1)
"""The tolerance of the limit, for a check by another clock."""
MOMENT_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)
_MOMENT: Final = re.compile(MOMENT_PATTERN[1:-1])
_DELAY: Final = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[smhd]?)")
_UNITS: Final = MappingProxyType({"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"})


def parse_moment(text: str) -> datetime:
    """Return the moment of an RFC 3339 time with any offset, in UTC.

    ValueError says what is wrong.
    """
    if not _MOMENT.fullmatch(text):
        raise ValueError(
            "must be an RFC 3339 time with its offset from UTC, like 2026-01-31T22:00:00+01:00 or 2026-01-31T21:00:00Z"
        )
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text} is no moment that there is") from None


def parse_delay(text: str) -> timedelta:
    """Return a delay like `90` (seconds), `30s`, `15m`, `2h`, `1d`; ValueError says what is wrong."""
    match = _DELAY.fullmatch(text)
    if match is None:
        raise ValueError("must be a number with a unit: 90 (seconds), 30s, 15m, 2h or 1d")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})


def too_far(not_before: datetime, now: datetime) -> bool:
    """Whether that moment is later than the limit."""
    return not_before - now > MAX_DELAY
