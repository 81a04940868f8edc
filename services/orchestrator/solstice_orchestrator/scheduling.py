"""Which waiting job starts next: (candidates, free slots) -> assignments. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.messages import Priority

PRIORITY_ORDER: Final = tuple(Priority)
"""Most urgent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that could start; `age` is smaller for those that came earlier."""

    job_id: str
    label: str
    priority: Priority
    age: int


def rank(priority: Priority) -> int:
    """0 for the most urgent class."""
    return PRIORITY_ORDER.index(priority)


def assign(candidates: Iterable[Candidate], free: Mapping[str, int], limit: int) -> Sequence[Candidate]:
    """At most `limit` jobs to start now, in dispatch order: priority class, then age; none beyond its label's slots."""
    left = dict(free)
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: (rank(each.priority), each.age)):
        if len(chosen) >= limit:
            break
        if left.get(candidate.label, 0) > 0:
            left[candidate.label] -= 1
            chosen.append(candidate)
    return chosen
