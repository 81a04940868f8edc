"""Computes when the next call to a forge may go out. Pure.

(what its answers said, our own pace, now) -> a moment.
Sources: docs.github.com, "Rate limits for the REST API" and "Best practices" (`retry-after`, `x-ratelimit-*`, secondary
limits: wait as long as they say, else a minute, then longer and longer); docs.gitlab.com, "Rate limits" (`ratelimit-*`,
`retry-after`); RFC 9110, section 10.2.3 (`retry-after` as seconds or as a date). Gitea and Forgejo have no limits of
their own; a proxy in front of them answers 429.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from solstice_forge.remote.protocol import CallPace

SECONDARY_SECONDS: Final = 60.0
"""The wait after a limit that names no time; it doubles each time in a row."""
LONGEST_SECONDS: Final = 3600.0
"""The longest wait: no limit of these forges has a longer window."""
_STRIKES: Final = 6
"""Doubling further would pass `LONGEST_SECONDS`."""
_LIMIT_STATUSES: Final = frozenset({403, 429})
_LIMIT_WORDS: Final = ("rate limit", "secondary limit", "abuse detection")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The remembered limits of one forge and our own pace; seconds since the epoch."""

    not_before: float = 0.0
    """The forge allows no call before."""
    paced_until: float = 0.0
    """When all calls so far would be due, at one per interval (GCRA's theoretical arrival time)."""
    strikes: int = 0
    """Limits in a row that named no time to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeAnswer:
    """The parts of an answer that matter here; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    detail: str = ""
    """The forge's text."""


def next_call_at(limits: CallLimits, pace: CallPace, now: float) -> float:
    """Return the earliest moment for the next call; `now` or before means at once."""
    burst_seconds = pace.interval_seconds * (pace.burst - 1)
    # A clock that was set back must not stop us for longer than the time of a whole burst.
    paced_until = min(limits.paced_until, now + burst_seconds + pace.interval_seconds)
    not_before = min(limits.not_before, now + LONGEST_SECONDS)
    return max(not_before, paced_until - burst_seconds)


def called(limits: CallLimits, pace: CallPace, now: float) -> CallLimits:
    """Return the limits after a call.

    Any `n` intervals have at most `n + burst` calls.
    """
    burst_seconds = pace.interval_seconds * pace.burst
    begun = min(max(limits.paced_until, now), now + burst_seconds)
    return replace(limits, paced_until=begun + pace.interval_seconds)


def is_limited(answer: ForgeAnswer) -> bool:
    """Whether a refusal is about the number of calls, and not about the call itself."""
    if answer.status == 429:  # noqa: PLR2004  Too Many Requests
        return True
    if answer.status not in _LIMIT_STATUSES:
        return False
    if "retry-after" in answer.headers or _remaining(answer.headers) == 0:
        return True
    words = answer.detail.lower()
    return any(each in words for each in _LIMIT_WORDS)


def answered(limits: CallLimits, answer: ForgeAnswer, *, reserve: int, now: float) -> CallLimits:
    """Return the limits after an answer.

    `reserve`: when only so many calls are left, the calls under way may already use them up.
    """
    if is_limited(answer):
        limited_until = _limited_until(answer.headers, now)
        if limited_until is None:
            waits = min(SECONDARY_SECONDS * 2.0**limits.strikes, LONGEST_SECONDS)
            strikes = min(limits.strikes + 1, _STRIKES)
            return replace(limits, not_before=max(limits.not_before, now + waits), strikes=strikes)
        return replace(limits, not_before=max(limits.not_before, limited_until))
    if _succeeded(answer.status):
        limits = replace(limits, strikes=0)
    retry_after = _retry_after(answer.headers, now) if not _succeeded(answer.status) else None
    if retry_after is not None:
        limits = replace(limits, not_before=max(limits.not_before, retry_after))
    remaining = _remaining(answer.headers)
    if remaining is not None and remaining <= reserve:
        reset = _reset(answer.headers, now)
        if reset is not None:
            limits = replace(limits, not_before=max(limits.not_before, reset))
    return limits


def _succeeded(status: int) -> bool:
    return 200 <= status < 300  # noqa: PLR2004  the class of success


def _limited_until(headers: Mapping[str, str], now: float) -> float | None:
    """Return when the forge asks us to come back, or None.

    `retry-after` takes precedence over the end of the window.
    """
    after = _retry_after(headers, now)
    if after is not None:
        return after
    return _reset(headers, now) if _remaining(headers) == 0 else None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    seconds = _number(text)
    if seconds is None:
        try:
            moment = parsedate_to_datetime(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return now + min(max(seconds, 0.0), LONGEST_SECONDS)


def _remaining(headers: Mapping[str, str]) -> int | None:
    for name in ("x-ratelimit-remaining", "ratelimit-remaining"):
        number = _number(headers.get(name, ""))
        if number is not None:
            return int(number)
    return None


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    """Return the end of the window plus a second: both clocks count whole seconds."""
    for name in ("x-ratelimit-reset", "ratelimit-reset"):
        number = _number(headers.get(name, ""))
        if number is not None:
            return min(max(number + 1.0, now), now + LONGEST_SECONDS)
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
