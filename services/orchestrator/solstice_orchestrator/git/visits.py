"""Which checkouts may hold a worker's slots while their git hosts say nothing. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

SILENT_SECONDS: Final = 5.0
"""A checkout without an answer for so long is silent, unless its host answered somebody else meanwhile."""
SILENT_ALONE_SECONDS: Final = 30.0
"""A checkout without an answer of its own for so long is silent, whatever its host tells others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """Somebody asks a git host."""

    host: str
    begun: float
    holds_slot: bool
    """A checkout holds one of the worker's slots; planning holds none."""
    heard: bool = False
    """Whether the host has sent any of what this visit asked for."""


def share(slots: int) -> int:
    """How many of the worker's slots silent checkouts may hold together: half, and at least one."""
    return max(1, slots // 2)


def is_silent(visit: Visit, answered_at: float | None, now: float) -> bool:
    """Whether the visit has waited in vain; `answered_at`: when its host answered anybody last."""
    if visit.heard:
        return False
    waited = now - visit.begun
    answers_others = answered_at is not None and answered_at >= visit.begun
    return waited >= (SILENT_ALONE_SECONDS if answers_others else SILENT_SECONDS)


def may_begin(host: str, visits: Collection[Visit], silent: Collection[Visit], slots: int) -> bool:
    """Whether a checkout may take a slot for a host; one whose host keeps nobody waiting always may.

    `visits` are all that are under way, `silent` those of them that wait in vain.
    """
    if not any(visit.host == host for visit in silent):
        return True
    held = sum(visit.holds_slot and (visit.host == host or visit in silent) for visit in visits)
    return held < share(slots)


def gives_way(visit: Visit, silent: Collection[Visit], slots: int) -> bool:
    """Whether a checkout must leave its slot to others: it is silent, and older ones fill the share."""
    holding = sorted((each for each in silent if each.holds_slot), key=lambda each: each.begun)
    return visit in holding[share(slots) :]
