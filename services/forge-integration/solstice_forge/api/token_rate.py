"""How often one token may ask: a bucket that fills steadily and is emptied by asking. Pure.

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
    """How much was in it at a moment, `at` in seconds of a clock that never goes back."""

    amount: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDecision:
    """The answer to one who asks: the bucket afterwards, and whether there was something in it."""

    bucket: TokenBucket
    allowed: bool
    remaining: int
    wait_seconds: int
    """Until there is one more."""


def take(bucket: TokenBucket | None, *, per_minute: int, now: float) -> RateDecision:
    """Take one; the bucket holds `per_minute` and fills with as many a minute. None is a full one."""
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


def headers_of(taken: RateDecision, *, per_minute: int) -> Mapping[str, str]:
    """What tells a program how often it may ask; with `Retry-After` when it was too often."""
    headers = {
        "RateLimit-Policy": f'"token";q={per_minute};w={MINUTE_SECONDS}',
        "RateLimit": f'"token";r={taken.remaining};t={taken.wait_seconds}',
    }
    return headers if taken.allowed else headers | {"Retry-After": str(taken.wait_seconds)}
