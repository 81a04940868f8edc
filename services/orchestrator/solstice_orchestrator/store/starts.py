"""What the rates of starts leave to one claim, and what the claim leaves of them. Pure; stores keep the buckets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from solstice_orchestrator.caps import Caps, room
from solstice_orchestrator.rates import (
    Bucket,
    Key,
    Scope,
    StartRates,
    Throttle,
    after_starts,
    full_at,
    startable,
    tokens,
)
from solstice_orchestrator.scheduling import Candidate


class BucketRow(NamedTuple):
    """A bucket as it is kept; its fields have the names of their columns, in every store."""

    scope: str
    name: str
    amount: float
    at: float
    full_at: float
    """From then on the row says no more than none would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """The buckets of one moment; one that is not among them is full."""

    rates: StartRates = field(default_factory=StartRates)
    buckets: Mapping[Key, Bucket] = field(default_factory=dict)
    now: float = 0.0

    @property
    def repositories(self) -> Sequence[str]:
        """Those that have started something lately."""
        return [key.name for key in self.buckets if key.scope is Scope.REPOSITORY]

    def fit(self, free: Mapping[str, int]) -> dict[str, int]:
        """These slots per label, as far as the labels' rates let them be filled now."""
        return {
            label: min(slots, self._most(Key(Scope.LABEL, label), slots)) for label, slots in free.items()
        }

    def room(self, repositories: Iterable[str]) -> dict[str, int]:
        """How many jobs of these repositories may start now, of those that have a rate."""
        return {
            name: self._most(Key(Scope.REPOSITORY, name), 0)
            for name in repositories
            if self.rates.repositories.rate(name) is not None
        }

    def spent(self, chosen: Iterable[Candidate], now: float) -> Sequence[BucketRow]:
        """What is to be kept once these have started."""
        if not self.rates.any:
            return ()
        counted = Counter[Key]()
        for candidate in chosen:
            counted[Key(Scope.LABEL, candidate.label)] += 1
            counted[Key(Scope.REPOSITORY, candidate.repository)] += 1
        rows = []
        for key, starts in counted.items():
            rate = self.rates.rate(key)
            if rate is not None:
                bucket = after_starts(self.buckets.get(key), rate, now, starts)
                rows.append(BucketRow(*key, bucket.amount, bucket.at, full_at(bucket, rate)))
        return rows

    def throttles(self, keys: Iterable[Key]) -> Sequence[Throttle]:
        """The buckets that a start would take from, of these."""
        return [
            Throttle(key=key, rate=rate, tokens=tokens(self.buckets.get(key), rate, self.now))
            for key in keys
            if (rate := self.rates.rate(key)) is not None
        ]

    def all_throttles(self) -> Sequence[Throttle]:
        """Of every bucket that is known not to be full."""
        return self.throttles(self.buckets)

    def _most(self, key: Key, unlimited: int) -> int:
        rate = self.rates.rate(key)
        return unlimited if rate is None else startable(self.buckets.get(key), rate, self.now)


UNLIMITED = Starts()
"""Where no rate is set."""


def starts_of(rates: StartRates, rows: Iterable[Sequence[object]], now: float) -> Starts:
    """From rows of the columns of `BucketRow`."""
    found = [BucketRow(*row) for row in rows]  # type: ignore[arg-type]  # the query selects BucketRow's columns; a row's values have no types
    buckets = {Key(Scope(row.scope), row.name): Bucket(row.amount, row.at) for row in found}
    return Starts(rates=rates, buckets=buckets, now=now)


def limited_by_repository(caps: Caps, rates: StartRates) -> bool:
    """Whether a claim has to look at the repositories of its candidates."""
    return caps.any or rates.repositories.any


def rooms(
    caps: Caps, starts: Starts, running: Mapping[str, int], asked: Iterable[str] = ()
) -> dict[str, int]:
    """How many more jobs may start, by cap and by rate: of those that run or started some, and those asked about."""
    names = {*running, *starts.repositories, *asked}
    return tighter(room(caps, running, names), starts.room({*names, *caps.of}))


def tighter(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The smaller of both, of whoever is in either."""
    return {
        name: min(one[name], other[name])
        if name in one and name in other
        else one.get(name, other.get(name, 0))
        for name in (*one, *other)
    }
