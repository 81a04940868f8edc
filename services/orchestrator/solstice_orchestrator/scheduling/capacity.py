"""Capacity for jobs: slots per label, and a limit over all labels. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_ENTRY: Final = re.compile(r"(?P<label>[A-Za-z0-9][A-Za-z0-9._-]{0,62})=(?P<slots>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Slots per label; `limit` bounds all labels together."""

    slots: Mapping[str, int]
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    """Free slots: per label, and in total."""

    slots: Mapping[str, int]
    total: int


def parse_slots(text: str) -> Mapping[str, int]:
    """Read `linux=4,illumos=1`; ValueError says what is wrong.

    A label with 0 slots is known and never served.
    """
    slots: dict[str, int] = {}
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise ValueError(f"{entry.strip()!r} is not LABEL=SLOTS; write for example linux=4,illumos=1")
        if match["label"] in slots:
            raise ValueError(f"the label {match['label']!r} stands there twice")
        slots[match["label"]] = int(match["slots"])
    return MappingProxyType(slots)


def capacity(slots: Mapping[str, int], max_concurrency: int) -> Capacity:
    """Return the capacity; `max_concurrency` 0 means as many as there are slots."""
    total = sum(slots.values())
    return Capacity(slots=slots, limit=min(total, max_concurrency) if max_concurrency else total)


def free(total: Capacity, in_use: Iterable[str]) -> FreeSlots:
    """Return the slots of `total` that jobs of these labels leave free; at least 0."""
    used = Counter(in_use)
    left = {label: max(0, slots - used[label]) for label, slots in total.slots.items()}
    return FreeSlots(slots=left, total=max(0, total.limit - used.total()))
