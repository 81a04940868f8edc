"""Caps, quotas and rates in a simulation: who may not start, and until when. Pure.

`caps.py`, `quotas.py` and `rates.py` decide; this module keeps in memory what the stores keep in rows.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum

from solstice_orchestrator.scheduling import quotas, rates
from solstice_orchestrator.scheduling.order import Candidate
from solstice_orchestrator.scheduling.quotas import OwnerStarts, counts_until, owner_of
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, RateBucket, after_starts, tokens
from solstice_orchestrator.scheduling.starts import StartLimits


class BoundKind(IntEnum):
    """What a limit applies to."""

    LABEL = 0
    REPOSITORY = 1
    OWNER = 2


class SimulatedBounds:
    """The limits and their counts; contains the repositories of which no job may start."""

    def __init__(self, limits: StartLimits) -> None:
        self._limits = limits
        self._owners: dict[str, str] = {}
        """The owner by repository."""
        self._repositories: defaultdict[str, list[str]] = defaultdict(list)
        """Known repositories by owner."""
        self._running: Counter[str] = Counter()
        """Running jobs per repository."""
        self._running_of: Counter[str] = Counter()
        """Running jobs per owner."""
        self._started: dict[str, list[OwnerStarts]] = {}
        self._buckets: dict[BucketKey, RateBucket] = {}
        self._shut: dict[BoundKind, set[str]] = {each: set() for each in BoundKind}
        self._opens: list[tuple[float, BoundKind, str]] = []
        """A heap of times at which a limit allows another start; entries may repeat."""

    def __contains__(self, repository: object) -> bool:
        return (
            repository in self._shut[BoundKind.REPOSITORY]
            or self._owners.get(str(repository)) in self._shut[BoundKind.OWNER]
        )

    @property
    def next_at(self) -> float:
        """When to check again; infinite: not before a job comes or ends."""
        return self._opens[0][0] if self._opens else math.inf

    def shut_label(self, label: str) -> bool:
        """Return whether no job of the label may start now."""
        return label in self._shut[BoundKind.LABEL]

    def meet(self, repository: str, now: float) -> None:
        """Add the repository of a new job. Safe to repeat."""
        if repository not in self._owners:
            owner = self._owners[repository] = owner_of(repository)
            self._check(BoundKind.REPOSITORY, repository, now)
            if owner:
                self._repositories[owner].append(repository)
                self._check(BoundKind.OWNER, owner, now)

    def start(self, candidate: Candidate, now: float) -> None:
        """Record the start of a job."""
        label, repository = candidate.label, candidate.repository
        owner = self._owners[repository]
        self._running[repository] += 1
        self._running_of[owner] += 1
        for key in (BucketKey(BucketScope.LABEL, label), BucketKey(BucketScope.REPOSITORY, repository)):
            if (rate := self._limits.rates.rate(key)) is not None:
                self._buckets[key] = after_starts(self._buckets.get(key), rate, now, 1)
        if owner and self._limits.quotas.starts_per_hour.cap(owner) is not None:
            self._count(owner, now)
        self._check(BoundKind.LABEL, label, now)
        self._check(BoundKind.REPOSITORY, repository, now)
        self._check(BoundKind.OWNER, owner, now)

    def end(self, candidate: Candidate, now: float) -> Sequence[str]:
        """Record the end of a job; return the repositories that may start jobs again."""
        repository = candidate.repository
        owner = self._owners[repository]
        self._running[repository] -= 1
        self._running_of[owner] -= 1
        again = list[str]()
        if repository in self._shut[BoundKind.REPOSITORY]:
            again += self._opened(BoundKind.REPOSITORY, repository, now)
        if owner in self._shut[BoundKind.OWNER]:
            again += self._opened(BoundKind.OWNER, owner, now)
        return again

    def go_to(self, now: float) -> Sequence[str]:
        """Advance the time; return the repositories that may start jobs again."""
        again = list[str]()
        while self._opens and self._opens[0][0] <= now:
            _, of, name = heapq.heappop(self._opens)
            if name in self._shut[of]:
                again += self._opened(of, name, now)
        return again

    def _opened(self, of: BoundKind, name: str, now: float) -> Iterable[str]:
        if self._check(of, name, now) or of is BoundKind.LABEL:
            return ()
        return [name] if of is BoundKind.REPOSITORY else self._repositories[name]

    def _check(self, of: BoundKind, name: str, now: float) -> bool:
        """Check whether a limit forbids starts now, and note when it ends."""
        seconds = self._seconds(of, name, now)
        if not seconds:
            self._shut[of].discard(name)
            return False
        self._shut[of].add(name)
        if math.isfinite(seconds):
            # A rounding error may delay a token.
            heapq.heappush(self._opens, (max(now + seconds, math.nextafter(now, math.inf)), of, name))
        return True

    def _seconds(self, of: BoundKind, name: str, now: float) -> float:
        """Seconds until one more job may start; infinite: after a job's end, or never."""
        if of is BoundKind.OWNER:
            if not name or _reached(self._limits.quotas.slots.cap(name), self._running_of[name]):
                return math.inf if name else 0.0
            quota = self._limits.quotas.starts_per_hour.cap(name)
            return 0.0 if quota is None else quotas.seconds_until(self._started.get(name, ()), quota, now)
        if of is BoundKind.REPOSITORY and _reached(self._limits.caps.cap(name), self._running[name]):
            return math.inf
        key = BucketKey(BucketScope.LABEL if of is BoundKind.LABEL else BucketScope.REPOSITORY, name)
        rate = self._limits.rates.rate(key)
        if rate is None:
            return 0.0
        return rates.seconds_until(tokens(self._buckets.get(key), rate, now), rate)

    def _count(self, owner: str, now: float) -> None:
        before, until = self._started.setdefault(owner, []), counts_until(now)
        if before and before[-1].until == until:
            before[-1] = OwnerStarts(until, before[-1].starts + 1)
        else:
            before[:] = [*(each for each in before if each.until > now), OwnerStarts(until, 1)]


def _reached(cap: int | None, used: int) -> bool:
    return cap is not None and used >= cap
