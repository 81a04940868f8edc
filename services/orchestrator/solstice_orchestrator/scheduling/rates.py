"""How fast jobs may start: a token bucket per label and per repository. Pure.

A bucket holds at most `burst` tokens, fills steadily, and every start takes one, over all workers. So at most
`per_second * seconds + burst` jobs of one label or repository start in any span of so many seconds, by the store's
clock; and no job waits for its rate while there is a token. (The token bucket of RFC 2697 in packets, or of nginx's
`limit_req rate=10r/s burst=20`.)
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from solstice_orchestrator.scheduling.caps import EACH_OTHER, named_entries

_ENTRY: Final = re.compile(
    r"(?P<name>[^\s=,]+)=(?P<starts>[0-9]{1,6})/(?P<unit>[smhd])(:(?P<burst>[0-9]{1,6}))?", re.ASCII
)
_SECONDS: Final = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400})


class BucketScope(StrEnum):
    """What a bucket limits."""

    LABEL = "label"
    REPOSITORY = "repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate of starts, with a burst."""

    text: str
    """As written in the setting: `10/s:20`."""
    per_second: float
    burst: int
    """Starts at once, when the bucket is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A rate per name: `of` names some, `default` is for each other one.

    None: any number may start.
    """

    of: Mapping[str, Rate] = field(default_factory=lambda: MappingProxyType({}))
    default: Rate | None = None

    def rate(self, name: str) -> Rate | None:
        """Return the rate of the name; None: any number may start."""
        return self.of.get(name, self.default)

    @property
    def any(self) -> bool:
        """Whether any name has a rate."""
        return bool(self.of) or self.default is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRates:
    """Rates of labels and of repositories; a start takes a token of both."""

    labels: Rates = field(default_factory=Rates)
    repositories: Rates = field(default_factory=Rates)

    @property
    def any(self) -> bool:
        """Whether any label or repository has a rate."""
        return self.labels.any or self.repositories.any

    def rate(self, key: "BucketKey") -> Rate | None:
        """Return the rate of a label or a repository."""
        rates = self.labels if key.scope is BucketScope.LABEL else self.repositories
        return rates.rate(key.name)


class BucketKey(NamedTuple):
    """The key of a bucket: its scope and name."""

    scope: BucketScope
    name: str


@dataclass(frozen=True, slots=True)
class RateBucket:
    """The tokens in a bucket at a given time.

    In seconds since the epoch by the store's clock.
    """

    amount: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """A bucket that limits a waiting job, as it is now."""

    key: BucketKey
    rate: Rate
    tokens: float


def parse_rates(text: str) -> Rates:
    """Read `linux=10/s:20,*=600/h`; ValueError says what is wrong; an empty text means no rates.

    The unit is s, m, h or d. The number after the colon is the burst; its default is what may start within a second, at
    least 1.
    """
    form = "NAME=STARTS/UNIT:BURST; write for example *=10/s:20,linux=600/h (units s, m, h, d)"
    of = {name: _rate(entry) for name, entry in named_entries(text, _ENTRY, form).items()}
    default = of.pop(EACH_OTHER, None)
    return Rates(of=MappingProxyType(of), default=default)


def _rate(entry: re.Match[str]) -> Rate:
    """Return the rate of one entry; ValueError when nothing could start."""
    per_second = int(entry["starts"]) / _SECONDS[entry["unit"]]
    burst = max(1, int(per_second)) if entry["burst"] is None else int(entry["burst"])
    if per_second <= 0 or burst <= 0:
        raise ValueError(
            f"{entry[0]!r} lets nothing start; pause the workers instead ('solstice workers pause')"
        )
    return Rate(text=f"{entry['starts']}/{entry['unit']}:{burst}", per_second=per_second, burst=burst)


def tokens(bucket: RateBucket | None, rate: Rate, now: float) -> float:
    """Return how many tokens the bucket holds now; a bucket of None is full.

    A clock that was set back neither fills nor empties it.
    """
    if bucket is None:
        return float(rate.burst)
    return min(float(rate.burst), bucket.amount + max(0.0, now - bucket.at) * rate.per_second)


def startable(bucket: RateBucket | None, rate: Rate, now: float) -> int:
    """Return how many jobs may start now."""
    return max(0, math.floor(tokens(bucket, rate, now)))


def after_starts(bucket: RateBucket | None, rate: Rate, now: float, starts: int) -> RateBucket:
    """Return the bucket after so many starts."""
    return RateBucket(tokens(bucket, rate, now) - starts, now)


def full_at(bucket: RateBucket, rate: Rate) -> float:
    """Return when the bucket is full again."""
    return bucket.at + max(0.0, rate.burst - bucket.amount) / rate.per_second


def token_at(bucket: RateBucket, rate: Rate) -> float:
    """Return when the bucket holds a whole token, if no start takes one before."""
    return bucket.at + max(0.0, 1 - bucket.amount) / rate.per_second


def seconds_until(tokens: float, rate: Rate, count: int = 1) -> float:
    """Seconds until a bucket with `tokens` tokens has given `count`; 0 when it holds them."""
    return max(0.0, count - tokens) / rate.per_second
