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

    url: str
    endpoint: str
    """The protocol, host and port."""
    begun: float
    holds_slot: bool
    """True for a checkout, which holds one of the worker's slots; planning holds none."""
    proven: bool
    """Whether the repository had answered before, and had not failed lately."""
    answered: bool = False
    """Whether the host has sent any of what this visit asked for."""


def share(slots: int) -> int:
    """Return how many slots all silent checkouts may hold: half, at least one."""
    return max(1, slots // 2)


def is_silent(visit: Visit, answered_at: float | None, now: float) -> bool:
    """Return whether a visit waits without an answer; `answered_at` is its host's last answer."""
    if visit.answered:
        return False
    waited = now - visit.begun
    answers_others = answered_at is not None and answered_at >= visit.begun
    return waited >= (SILENT_ALONE_SECONDS if answers_others else SILENT_SECONDS)


def may_begin(
    url: str,
    visits: Collection[Visit],
    silent: Collection[Visit],
    slots: int,
    *,
    endpoint: str,
    answered_at: float | None,
) -> bool:
    """Return whether a checkout may take a slot.

    It always may unless a visit to its own repository is silent, or one to its host, which has not answered any visit
    since; `answered_at` is its last answer. Even then one at a time may, from another repository: one that hangs must
    not stop others. `visits` are all visits under way, `silent` the silent ones.
    """
    is_silent_itself = any(visit.url == url for visit in silent)
    is_host_silent = any(
        visit.endpoint == endpoint and (answered_at is None or answered_at < visit.begun) for visit in silent
    )
    if not is_silent_itself and not is_host_silent:
        return True
    holding = [visit for visit in visits if visit.holds_slot]
    is_first = not any(visit.endpoint == endpoint and visit not in silent for visit in holding)
    if is_first and not is_silent_itself:
        return True
    used = sum(visit.endpoint == endpoint or visit in silent for visit in holding)
    return used < share(slots)


def gives_way(visit: Visit, silent: Collection[Visit], slots: int) -> bool:
    """Return whether a checkout must leave its slot, because older silent ones fill the share."""
    holding = sorted((each for each in silent if each.holds_slot), key=lambda each: each.begun)
    return visit in holding[share(slots) :]
