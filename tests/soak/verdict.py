"""Finds problems of a soak in readings, log events and jobs. Pure."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from solstice_common.runtime.public_interfaces import public_only
from tests.soak.readings import Reading, lasting_zombies

ZOMBIE_SECONDS: Final = 5.0
"""Seconds that a dead child may wait for its parent."""
DESCRIPTORS: Final = 12
MEMORY_SHARE, MEMORY_MEBIBYTES = 1.15, 32.0
"""The growth that is allowed between the beginning and the end of the load."""
WARM_UP: Final = 0.1
SLICE: Final = 5
FEWEST_READINGS: Final = 20
CLOSED_TWICE: Final = ("EBADF", "[Errno 9]", "Bad file descriptor")
EXPECTED_WARNINGS: Final = frozenset({"http.unbounded"} if public_only("uvicorn") else ())
"""Without uvicorn's inside each service logs at its start what it does not bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A series as three numbers.

    They are the medians of its first and last fifth after the warm-up, and its largest value.
    """

    first: float
    last: float
    largest: float


def figures(values: Sequence[float]) -> Figures:
    """The figures of at least one value."""
    warm = values[int(len(values) * WARM_UP) :]
    fifth = max(1, len(warm) // SLICE)
    return Figures(
        first=statistics.median(warm[:fifth]), last=statistics.median(warm[-fifth:]), largest=max(values)
    )


def of_readings(name: str, readings: Sequence[Reading]) -> list[str]:
    """What grew, and which dead children remained."""
    if len(readings) < FEWEST_READINGS:
        return [f"{name}: {len(readings)} readings are too few to judge"]
    troubles = []
    descriptors = figures([reading.descriptors for reading in readings])
    if descriptors.last > descriptors.first + DESCRIPTORS:
        troubles.append(f"{name}: descriptors grew from {descriptors.first:g} to {descriptors.last:g}")
    memory = figures([reading.mebibytes for reading in readings])
    if memory.last > memory.first * MEMORY_SHARE + MEMORY_MEBIBYTES:
        troubles.append(f"{name}: memory grew from {memory.first:.0f} to {memory.last:.0f} MiB")
    if zombies := lasting_zombies(readings, ZOMBIE_SECONDS):
        troubles.append(f"{name}: {len(zombies)} children were not collected: {sorted(zombies)[:5]}")
    return troubles


def events_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of a JSON log; other lines become events without a level."""
    events = []
    for line in filter(str.strip, lines):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        events.append(event if isinstance(event, dict) else {"event": line.rstrip()})
    return events


def of_events(name: str, events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The complaints of a service: each kind once, with number and first instance."""
    seen, first = Counter[str](), dict[str, str]()
    for event in events:
        if kind := _problem(event):
            seen[kind] += 1
            first.setdefault(kind, json.dumps(event, default=str)[-1000:])
    return [f"{name}: {count} times {kind}, first {first[kind]}" for kind, count in seen.items()]


def _problem(event: Mapping[str, Any]) -> str | None:
    level, what = event.get("level"), str(event.get("event"))
    if any(words in json.dumps(event, default=str) for words in CLOSED_TWICE):
        return f"{what} about a closed descriptor"
    if level is None:
        return "a line that is no event"
    if level == "warning" and what not in EXPECTED_WARNINGS:
        return f"the warning {what}"
    return f"the {level} {what}" if level in {"error", "critical"} else None


def of_jobs(expected: int, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Whether each job succeeded at its first attempt, and none is missing."""
    ends, ids = Counter[str](), set[str]()
    for job in jobs:
        ids.add(job["job_id"])
        ends[f"{job['state']} ({job['reason']}) at attempt {job['attempt']}"] += 1
    troubles = [f"{len(ids)} jobs instead of {expected}"] if len(ids) != expected else []
    good = {end for end in ends if end.startswith("succeeded") and end.endswith("attempt 1")}
    return troubles + [f"{count} jobs {end}" for end, count in ends.items() if end not in good]


def of_log(expected: int, events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same by the orchestrator's log.

    It has one end of one attempt for each job.
    """
    finished = Counter(event["job_id"] for event in events if event.get("event") == "attempt.finished")
    twice = [job for job, count in finished.items() if count > 1]
    troubles = [f"the log has the ends of {len(finished)} jobs instead of {expected}"]
    troubles = troubles if len(finished) != expected else []
    return troubles + ([f"{len(twice)} jobs ended twice: {twice[:3]}"] if twice else [])
