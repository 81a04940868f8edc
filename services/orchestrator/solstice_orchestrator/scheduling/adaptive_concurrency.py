"""Limits how many jobs a worker runs at once, by additive increase and multiplicative decrease. Pure.

Why not a gradient of latencies: docs/decisions/0023. A worker that has lost half of its slots regains them after `limit
/ 2 * GROW_SECONDS`. Between two decreases lie at least SETTLE_SECONDS, because failures at the same time have one
cause.
"""

from dataclasses import dataclass, replace
from typing import Final

from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.scheduling.governor import Resource, StartRefusal
from solstice_orchestrator.scheduling.quarantine import COUNTED_REASONS

DECREASE: Final = 0.5
GROW_SECONDS: Final = 10.0
"""Time to regain one slot."""
SETTLE_SECONDS: Final = 10.0

OVERLOAD: Final = frozenset({Resource.LOAD, Resource.MEMORY})
"""Shortages that fewer jobs at once can relieve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyWindow:
    """The number of slots at one time; it grows from there.

    The time is in seconds of a monotonic clock.
    """

    slots: float
    at: float
    """When it was halved, or since when it grows."""
    grows_from: float = 0.0
    """When the trouble ended, where that is later."""


def slots(window: ConcurrencyWindow | None, limit: int, now: float) -> int:
    """How many jobs may run at once: from 1 to `limit`; None: no trouble yet."""
    return limit if window is None else max(min(1, limit), int(_grown(window, limit, now)))


def after_trouble(window: ConcurrencyWindow | None, limit: int, now: float) -> ConcurrencyWindow:
    """Return the smaller window after trouble that fewer jobs at once may relieve."""
    if window is not None and now - window.at < SETTLE_SECONDS:
        return window
    grown = float(limit) if window is None else _grown(window, limit, now)
    return ConcurrencyWindow(slots=max(1.0, grown * DECREASE), at=now)


def while_trouble_lasts(
    window: ConcurrencyWindow | None, limit: int, *, since: float, now: float
) -> ConcurrencyWindow | None:
    """Return the window after trouble from `since` to `now`: it does not grow meanwhile."""
    if window is None:
        return None
    return replace(window, slots=_grown(window, limit, since), grows_from=now)


def is_trouble(cause: Outcome | StartRefusal) -> bool:
    """Return whether an attempt's end or a governor's refusal means too many jobs at once."""
    if isinstance(cause, StartRefusal):
        return cause.resource in OVERLOAD
    return cause.reason in COUNTED_REASONS


def _grown(window: ConcurrencyWindow, limit: int, now: float) -> float:
    grew_seconds = max(0.0, now - max(window.at, window.grows_from))
    return min(float(limit), window.slots + grew_seconds / GROW_SECONDS)
