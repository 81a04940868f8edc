"""How many jobs a worker may check out at once, by their speed. Pure.

Deep and fast: one more for each round of checkouts. Slow: half as many. Why so: docs/decisions/0066. The window limits
nothing but checkouts at once; slots, rates and quotas limit the starts as they do without it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from solstice_orchestrator.scheduling.governor import Resource, StartRefusal

SHRINK: Final = 0.5
LEAST: Final = 1.0
"""A worker always may check out one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWindow:
    """The number of checkouts at once, from 1 to the machine's limit."""

    size: float = LEAST
    shrunk_at: float = -math.inf
    """When it was last halved, by a monotonic clock."""

    @property
    def at_once(self) -> int:
        """The whole checkouts that fit."""
        return int(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCheckout:
    """What a checkout says about the machine."""

    seconds: float
    at_once: int
    """How many were in progress when it ended, with itself."""
    succeeded: bool
    jobs_wait: bool
    """Whether the last claim left jobs waiting, as far as is known."""


def after_checkout(
    window: StartWindow, ended: TimedCheckout, *, target_seconds: float, most: int, now: float
) -> StartWindow:
    """Return the window after a checkout: never below 1, never above `most`.

    A slow one that began before the last decrease has the same cause, and changes nothing.
    """
    if ended.seconds > target_seconds:
        if now - ended.seconds < window.shrunk_at:
            return window
        return StartWindow(size=max(LEAST, min(window.size, most) * SHRINK), shrunk_at=now)
    grows = ended.succeeded and ended.jobs_wait and ended.at_once >= window.at_once
    size = window.size + 1.0 / window.size if grows else window.size
    return replace(window, size=max(LEAST, min(float(most), size)))


def full_window(window: StartWindow, starting: int, target_seconds: float) -> StartRefusal:
    """Return the refusal to check out more, for people who ask why a job waits."""
    return StartRefusal(
        resource=Resource.STARTING,
        detail=f"{starting} jobs are being checked out, as many as may be at once ({window.at_once}) so that a checkout "
        f"takes at most {target_seconds:g} s (START_SECONDS)",
    )
