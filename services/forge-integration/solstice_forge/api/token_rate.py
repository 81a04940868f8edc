"""Limits how often one token may call: a token bucket. Pure.

The headers are those of the IETF draft "RateLimit header fields for HTTP"
(datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MINUTE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """The content of a bucket at a moment.

    `at` is in seconds of a clock that never goes back.
    """

    amount: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDecision:
    """Whether the bucket had a token, and the bucket afterwards."""

    bucket: TokenBucket
    allowed: bool
    remaining: int
    wait_seconds: int
    """Seconds until there is one more token."""


def take(bucket: TokenBucket | None, *, per_minute: int, now: float) -> RateDecision:
    """Take one token from the bucket; None is a full bucket.

    The bucket holds `per_minute` tokens and gains as many per minute.
    """
    filled = (
        per_minute
        if bucket is None
        else min(per_minute, bucket.amount + (now - bucket.at) * per_minute / MINUTE_SECONDS)
    )
    allowed = filled >= 1
    left = filled - 1 if allowed else filled
    missing = math.floor(left) + 1 - left
    return RateDecision(
        bucket=TokenBucket(amount=left, at=now),
        allowed=allowed,
        remaining=math.floor(left),
        wait_seconds=max(1, math.ceil(missing * MINUTE_SECONDS / per_minute)),
    )


def headers_of(decision: RateDecision, *, per_minute: int) -> Mapping[str, str]:
    """Return the headers that say how often a program may call.

    After a refusal, `Retry-After` is among them.
    """
    headers = {
        "RateLimit-Policy": f'"token";q={per_minute};w={MINUTE_SECONDS}',
        "RateLimit": f'"token";r={decision.remaining};t={decision.wait_seconds}',
    }
    return headers if decision.allowed else headers | {"Retry-After": str(decision.wait_seconds)}
