"""How many dead letters there are, by reason, priority and age. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts

AGES: Final = ((3600.0, "under 1 h"), (86_400.0, "under 1 day"), (604_800.0, "under 7 days"))
OLDER: Final = "7 days or more"
NO_TIME: Final = "unknown"
NO_CLASS: Final = "none"


@dataclass(frozen=True, kw_only=True)
class DeadLetterNumbers:
    """Numbers by name: the most frequent first, ages from young to old, no zeros."""

    total: int
    by_queue: Mapping[str, int]
    by_reason: Mapping[str, int]
    by_priority: Mapping[str, int]
    by_age: Mapping[str, int]

    def document(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "by_queue": dict(self.by_queue),
            "by_reason": dict(self.by_reason),
            "by_priority": dict(self.by_priority),
            "by_age": dict(self.by_age),
        }


class DeadLetterCounter:
    """Counts dead letters one by one, as of `now`, and holds none of them."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._queues, self._reasons, self._priorities, self._ages = (Counter[str]() for _ in range(4))

    def add(self, found: DeadLetterFacts) -> None:
        self._queues[found.dead_letter.queue] += 1
        self._reasons[found.reason] += 1
        self._priorities[str(found.priority or NO_CLASS)] += 1
        self._ages[_age(found, self._now)] += 1

    def read(self) -> DeadLetterNumbers:
        """Return the numbers so far."""
        ages = self._ages
        return DeadLetterNumbers(
            total=self._queues.total(),
            by_queue=_ordered(self._queues),
            by_reason=_ordered(self._reasons),
            by_priority=_ordered(self._priorities),
            by_age={name: ages[name] for name in (*(name for _, name in AGES), OLDER, NO_TIME) if ages[name]},
        )


def counts(found: Iterable[DeadLetterFacts], now: datetime) -> DeadLetterNumbers:
    """Count them, as of `now`."""
    counting = DeadLetterCounter(now)
    for each in found:
        counting.add(each)
    return counting.read()


def _ordered(numbers: Counter[str]) -> Mapping[str, int]:
    return dict(sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0])))


def _age(found: DeadLetterFacts, now: datetime) -> str:
    if found.dead_since is None:
        return NO_TIME
    seconds = (now - found.dead_since).total_seconds()
    return next((name for limit, name in AGES if seconds < limit), OLDER)
