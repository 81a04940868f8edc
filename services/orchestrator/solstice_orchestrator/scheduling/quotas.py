"""Quotas of a repository owner: jobs at once, and starts per hour. Pure.

They hold over all workers (settings `OWNER_CAPS` and `OWNER_STARTS_PER_HOUR`). An hour is any 3600 s, not an hour of
the day: a start counts for 3600 s, and on to the next full minute, so that at most 61 numbers per owner are kept (a
sliding window, docs/decisions/0026).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from solstice_orchestrator.scheduling.caps import Caps

HOUR: Final = 3600.0
MINUTE: Final = 60.0

_IN_URL: Final = re.compile(r"[^:/]+://[^/]*/([^/]+)/")
_IN_NAME: Final = re.compile(r"([^/]+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas of each owner; repositories without an owner are not counted."""

    slots: Caps = field(default_factory=Caps)
    """Jobs at once."""
    starts_per_hour: Caps = field(default_factory=Caps)

    @property
    def any(self) -> bool:
        """Whether any owner has a quota."""
        return self.slots.any or self.starts_per_hour.any

    def bound(self, owner: str) -> bool:
        """Return whether this owner has a quota."""
        return bool(owner) and (
            self.slots.cap(owner) is not None or self.starts_per_hour.cap(owner) is not None
        )


class OwnerStarts(NamedTuple):
    """Starts of one owner, and until when they count.

    In seconds since the epoch by the store's clock.
    """

    until: float
    starts: int


def owner_of(repository: str) -> str:
    """Return the owner of a repository: the part before the first `/`, as written.

    It is the user, the organisation, or GitLab's top-level group. For a repository that is known only by its URL, the
    first part of the path. Empty where there is none, and for files.
    """
    if "://" not in repository:
        matched = _IN_NAME.match(repository)
    elif repository.lower().startswith("file:"):
        matched = None
    else:
        matched = _IN_URL.match(repository)
    return matched[1] if matched else ""


def running_of(running: Mapping[str, int]) -> dict[str, int]:
    """Running jobs per owner, from running jobs per repository."""
    counted: dict[str, int] = {}
    for repository, jobs in running.items():
        if owner := owner_of(repository):
            counted[owner] = counted.get(owner, 0) + jobs
    return counted


def counts_until(at: float) -> float:
    """Until when a start at that time counts."""
    return math.ceil((at + HOUR) / MINUTE) * MINUTE


def started(before: Iterable[OwnerStarts], now: float) -> int:
    """Return how many of these starts count now."""
    return sum(each.starts for each in before if each.until > now)


def startable(before: Iterable[OwnerStarts], quota: int, now: float, seconds: float) -> int:
    """Return how many more jobs may start within so many seconds.

    The rest of the quota, and the whole quota again in each full hour.
    """
    hours = int(seconds // HOUR)
    return max(0, quota - started(before, now + seconds - hours * HOUR)) + hours * quota


def seconds_until(before: Sequence[OwnerStarts], quota: int, now: float, count: int = 1) -> float:
    """Seconds until `count` more have started, each as soon as it may; `inf`: never."""
    if quota <= 0:
        return math.inf
    rounds, more = divmod(count - 1, quota)
    left = quota - started(before, now) - (more + 1)
    seconds = 0.0
    for each in sorted(each for each in before if each.until > now):
        if left >= 0:
            break
        left += each.starts
        seconds = each.until - now
    # A start at that time counts for an hour as well.
    return seconds + rounds * HOUR
