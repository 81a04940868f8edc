"""How many dead letters there are, by reason, priority and age. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts

AGES: Final = ((3600.0, "under 1 h"), (86_400.0, "under 1 day"), (604_800.0, "under 7 days"))
OLDER: Final = "7 days or more"
NO_TIME: Final = "unknown"
NO_CLASS: Final = "none"


@dataclass(frozen=True, kw_only=True)
class Counts:
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


def counts(found: Sequence[DeadLetterFacts], now: datetime) -> Counts:
    """Count them, as of `now`."""
    ages = Counter(_age(each, now) for each in found)
    return Counts(
        total=len(found),
        by_queue=_ordered(each.dead_letter.queue for each in found),
        by_reason=_ordered(each.reason for each in found),
        by_priority=_ordered(each.priority or NO_CLASS for each in found),
        by_age={name: ages[name] for name in (*(name for _, name in AGES), OLDER, NO_TIME) if ages[name]},
    )


def _ordered(names: Any) -> Mapping[str, int]:
    return dict(sorted(Counter(map(str, names)).items(), key=lambda pair: (-pair[1], pair[0])))


def _age(found: DeadLetterFacts, now: datetime) -> str:
    if found.dead_since is None:
        return NO_TIME
    seconds = (now - found.dead_since).total_seconds()
    return next((name for limit, name in AGES if seconds < limit), OLDER)
