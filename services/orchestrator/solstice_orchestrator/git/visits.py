"""Decide which checkouts may hold slots while their git hosts are silent. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

SILENT_SECONDS: Final = 5.0
"""The time after which a checkout is silent, unless its host answered another visit."""
SILENT_ALONE_SECONDS: Final = 30.0
"""The time after which a checkout without its own answer is always silent."""


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """A fetch under way from a git host."""

    host: str
    begun: float
    holds_slot: bool
    """True for a checkout, which holds one of the worker's slots; planning holds none."""
    answered: bool = False
    """Whether the host has sent any of what this visit asked for."""


def share(slots: int) -> int:
    """Return how many slots all silent checkouts may hold: half, at least one."""
    return max(1, slots // 2)


def is_silent(visit: Visit, answered_at: float | None, now: float) -> bool:
    """Whether a visit waits without an answer; `answered_at` is its host's last answer."""
    if visit.answered:
        return False
    waited = now - visit.begun
    answers_others = answered_at is not None and answered_at >= visit.begun
    return waited >= (SILENT_ALONE_SECONDS if answers_others else SILENT_SECONDS)


def may_begin(host: str, visits: Collection[Visit], silent: Collection[Visit], slots: int) -> bool:
    """Whether a checkout of a host may take a slot.

    It always may if no visit to its host is silent. `visits` are all visits under way, `silent` the silent ones.
    """
    if not any(visit.host == host for visit in silent):
        return True
    used = sum(visit.holds_slot and (visit.host == host or visit in silent) for visit in visits)
    return used < share(slots)


def gives_way(visit: Visit, silent: Collection[Visit], slots: int) -> bool:
    """Whether a checkout must leave its slot, because older silent ones fill the share."""
    holding = sorted((each for each in silent if each.holds_slot), key=lambda each: each.begun)
    return visit in holding[share(slots) :]
