"""How many jobs a claim may start under caps, quotas and rates. Pure.

The stores keep the counts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from solstice_orchestrator.scheduling.caps import Caps, unused
from solstice_orchestrator.scheduling.order import Candidate, RemainingStarts
from solstice_orchestrator.scheduling.quotas import (
    OwnerStarts,
    Quotas,
    counts_until,
    running_of,
    seconds_until,
    started,
)
from solstice_orchestrator.scheduling.rates import (
    BucketKey,
    BucketScope,
    RateBucket,
    StartRates,
    Throttle,
    after_starts,
    full_at,
    startable,
    token_at,
    tokens,
)


class BucketRow(NamedTuple):
    """A bucket as stored; its fields have the names of the columns, in every store."""

    scope: str
    name: str
    amount: float
    at: float
    full_at: float
    """When the bucket is full, so that the row can be deleted."""


class StartedRow(NamedTuple):
    """Starts of an owner as stored; `starts` are added to the stored number."""

    owner: str
    until: float
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLimits:
    """The limits on starts besides slots, over all workers."""

    caps: Caps = field(default_factory=Caps)
    """How many jobs of a repository may run at once."""
    quotas: Quotas = field(default_factory=Quotas)
    """Limits per owner."""
    rates: StartRates = field(default_factory=StartRates)
    """How fast jobs of a label, and of a repository, may start."""

    @property
    def any(self) -> bool:
        """Whether there is any limit besides slots."""
        return self.by_sender or self.rates.any

    @property
    def by_sender(self) -> bool:
        """Whether a limit depends on a job's repository or owner."""
        return self.caps.any or self.quotas.any or self.rates.repositories.any

    @property
    def of_time(self) -> bool:
        """Whether a limit allows more starts as time passes."""
        return self.rates.any or self.quotas.starts_per_hour.any

    @property
    def of_running(self) -> bool:
        """Whether a limit needs the count of running jobs."""
        return self.caps.any or self.quotas.slots.any


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBudget:
    """The limits, and what counts against them at one moment."""

    limits: StartLimits = field(default_factory=StartLimits)
    running: Mapping[str, int] = field(default_factory=dict)
    """Running jobs by repository."""
    started: Mapping[str, Sequence[OwnerStarts]] = field(default_factory=dict)
    """Starts that still count, by owner."""
    buckets: Mapping[BucketKey, RateBucket] = field(default_factory=dict)
    """A bucket that is not here is full."""
    now: float = 0.0

    def fit(self, free: Mapping[str, int]) -> dict[str, int]:
        """Return the free slots per label that the labels' rates allow to fill now."""
        return {
            label: min(slots, self._most(BucketKey(BucketScope.LABEL, label), slots))
            for label, slots in free.items()
        }

    def remaining(self, repositories: Iterable[str], owners: Iterable[str]) -> RemainingStarts:
        """How many more jobs may start, for those of these names that have a limit."""
        limits, names, owners = self.limits, list(repositories), [each for each in owners if each]
        rated = {
            name: self._most(BucketKey(BucketScope.REPOSITORY, name), 0)
            for name in names
            if limits.rates.repositories.rate(name) is not None
        }
        counted = {owner: started(self.started.get(owner, ()), self.now) for owner in owners}
        return RemainingStarts(
            repositories=_tighter(unused(limits.caps, self.running, names), rated),
            owners=_tighter(
                unused(limits.quotas.slots, self._running_of_owners(), owners),
                unused(limits.quotas.starts_per_hour, counted, owners),
            ),
        )

    def all_remaining(self) -> RemainingStarts:
        """Return the same for all names with running jobs, recent starts or a limit."""
        limits = self.limits
        of_buckets = [key.name for key in self.buckets if key.scope is BucketScope.REPOSITORY]
        return self.remaining(
            {*self.running, *of_buckets, *limits.caps.of},
            {
                *self._running_of_owners(),
                *self.started,
                *limits.quotas.slots.of,
                *limits.quotas.starts_per_hour.of,
            },
        )

    def spent(self, chosen: Iterable[Candidate], now: float) -> Sequence[BucketRow]:
        """Return the bucket rows to store after these jobs have started."""
        if not self.limits.rates.any:
            return ()
        counted = Counter[BucketKey]()
        for candidate in chosen:
            counted[BucketKey(BucketScope.LABEL, candidate.label)] += 1
            counted[BucketKey(BucketScope.REPOSITORY, candidate.repository)] += 1
        rows = []
        for key, starts in counted.items():
            rate = self.limits.rates.rate(key)
            if rate is not None:
                bucket = after_starts(self.buckets.get(key), rate, now, starts)
                rows.append(BucketRow(*key, bucket.amount, bucket.at, full_at(bucket, rate)))
        return rows

    def counted(self, chosen: Iterable[Candidate], now: float) -> Sequence[StartedRow]:
        """Return the owners' starts to add after these jobs have started, sorted."""
        quota = self.limits.quotas.starts_per_hour
        if not quota.any:
            return ()
        owners = Counter(each.owner for each in chosen if each.owner and quota.cap(each.owner) is not None)
        return [StartedRow(owner, counts_until(now), starts) for owner, starts in sorted(owners.items())]

    def throttles(self, keys: Iterable[BucketKey]) -> Sequence[Throttle]:
        """Return the buckets among these keys that limit a start."""
        return [
            Throttle(key=key, rate=rate, tokens=tokens(self.buckets.get(key), rate, self.now))
            for key in keys
            if (rate := self.limits.rates.rate(key)) is not None
        ]

    def pause_seconds(self, since_seconds: float = 0.0) -> float | None:
        """Seconds until the first limit allows one more start; None: no rate or quota did.

        0 when a claim that began `since_seconds` ago just missed a token that is there now.
        """
        quota, then = self.limits.quotas.starts_per_hour, self.now - since_seconds
        lets_at = [
            then + seconds
            for owner, before in self.started.items()
            if (most := quota.cap(owner)) is not None
            and 0 < (seconds := seconds_until(before, most, then)) < math.inf
        ]
        for key, bucket in self.buckets.items():
            rate = self.limits.rates.rate(key)
            if rate is not None and (at := token_at(bucket, rate)) > then:
                lets_at.append(at)
        return max(0.0, min(lets_at) - self.now) if lets_at else None

    def _running_of_owners(self) -> Mapping[str, int]:
        return running_of(self.running) if self.limits.quotas.slots.any else {}

    def _most(self, key: BucketKey, unlimited: int) -> int:
        rate = self.limits.rates.rate(key)
        return unlimited if rate is None else startable(self.buckets.get(key), rate, self.now)


def buckets_of(rows: Iterable[Sequence[object]]) -> Mapping[BucketKey, RateBucket]:
    """Read rows with the columns of `BucketRow`."""
    buckets = [BucketRow(*row) for row in rows]  # type: ignore[arg-type]  # the query selects BucketRow's columns; a row's values have no types
    return {BucketKey(BucketScope(row.scope), row.name): RateBucket(row.amount, row.at) for row in buckets}


def started_of(rows: Iterable[Sequence[object]]) -> Mapping[str, Sequence[OwnerStarts]]:
    """Read rows with the columns of `StartedRow`."""
    by_owner: dict[str, list[OwnerStarts]] = {}
    for owner, *counted in rows:
        by_owner.setdefault(owner, []).append(OwnerStarts(*counted))  # type: ignore[arg-type]  # a row has the fields' order
    return by_owner


def _tighter(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the smaller number for each name in either."""
    return {
        name: min(one[name], other[name])
        if name in one and name in other
        else one.get(name, other.get(name, 0))
        for name in (*one, *other)
    }
