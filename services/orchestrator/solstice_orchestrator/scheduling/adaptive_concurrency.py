"""How many jobs a worker takes at once when the world goes wrong on it: additive increase, multiplicative decrease. Pure.

Why this and no gradient of latencies: docs/decisions/0023. A worker that has lost half of its slots has them back after
`limit / 2 * GROW_SECONDS`; between two losses lie SETTLE_SECONDS at least, since what fails together has one cause.
"""

from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.scheduling.governor import Resource, StartRefusal
from solstice_orchestrator.scheduling.quarantine import COUNTED_REASONS

DECREASE: Final = 0.5
GROW_SECONDS: Final = 10.0
"""For each slot that comes back."""
SETTLE_SECONDS: Final = 10.0

OVERLOAD: Final = frozenset({Resource.LOAD, Resource.MEMORY})
"""What fewer jobs at once help against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyWindow:
    """Slots at a moment of a clock that never goes back, in seconds; they grow by themselves since."""

    slots: float
    at: float


def slots(window: ConcurrencyWindow | None, limit: int, now: float) -> int:
    """How many jobs at once, of `limit` at the most, 1 at the least; None: nothing went wrong yet."""
    return limit if window is None else max(min(1, limit), int(_grown(window, limit, now)))


def after_trouble(window: ConcurrencyWindow | None, limit: int, now: float) -> ConcurrencyWindow:
    """The window once something went wrong that fewer jobs at once may help against."""
    if window is not None and now - window.at < SETTLE_SECONDS:
        return window
    grown = float(limit) if window is None else _grown(window, limit, now)
    return ConcurrencyWindow(slots=max(1.0, grown * DECREASE), at=now)


def is_trouble(cause: Outcome | StartRefusal) -> bool:
    """Whether an attempt's end, or a refusal of the governor, says that this is too much at once."""
    if isinstance(cause, StartRefusal):
        return cause.resource in OVERLOAD
    return cause.reason in COUNTED_REASONS


def _grown(window: ConcurrencyWindow, limit: int, now: float) -> float:
    return min(float(limit), window.slots + (now - window.at) / GROW_SECONDS)
