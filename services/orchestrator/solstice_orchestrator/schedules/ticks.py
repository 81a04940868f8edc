"""Which tick of a schedule fires, and which were missed. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from solstice_common.messages.schedules import Missed
from solstice_orchestrator.schedules.cron import Timing

ON_TIME_SECONDS: Final = 30.0
"""A tick that fires within this time is on time.

A poll without a notification may be this late.
"""
LATE_SECONDS: Final = 120.0
"""A tick that is noticed later than this was missed; until then it fires as late."""
MAX_COUNTED: Final = 1000
"""Missed ticks are counted up to this number; more are known only as more."""
RETRY_BASE_SECONDS: Final = 5.0
RETRY_CAP_SECONDS: Final = 300.0
"""The longest wait between questions to a forge that does not answer."""
REMEMBERED_TICKS: Final = 100
"""Ticks kept per schedule, besides those of unfinished runs."""


class TickState(StrEnum):
    """The states of a tick."""

    DUE = "due"
    """It fires as soon as the forge has named the branch's commit."""
    FIRED = "fired"
    SKIPPED = "skipped"
    FAILED = "failed"


class TickReason(StrEnum):
    """Why a tick is in its state."""

    ON_TIME = "on_time"
    LATE = "late"
    """It fired more than ON_TIME_SECONDS late: no orchestrator ran, or the forge did not answer."""
    CAUGHT_UP = "caught_up"
    """It replaces missed ticks."""
    BY_HAND = "by_hand"
    MISSED = "missed"
    """No orchestrator ran."""
    STILL_RUNNING = "still_running"
    """The run before it had not ended."""
    PAUSED = "paused"
    """The schedule was paused before it could fire."""
    BRANCH_GONE = "branch_gone"
    """The repository has no such branch."""
    UNREADABLE = "unreadable"
    """The repository does not exist, or access is refused."""
    FORGE_AWAY = "forge_away"
    """The forge did not answer."""
    OVERTAKEN = "overtaken"
    """The forge did not answer before the next tick came."""
    NOT_A_REQUEST = "not_a_request"
    """Its request would be invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedTicks:
    """Ticks that were missed."""

    first: float
    last: float
    count: int
    """A minimum, when it is MAX_COUNTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickDecision:
    """The ticks up to a moment: the one that fires, and those missed."""

    due: float | None = None
    """The tick to fire."""
    reason: TickReason = TickReason.ON_TIME
    missed: MissedTicks | None = None
    next_at: float | None
    """The first tick after that moment; None: there is none."""


def decide_ticks(timing: Timing, *, after: float, now: float, missed: Missed) -> TickDecision:
    """Decide on the ticks after `after` and up to `now`.

    `after` is where the last decision ended. At most one tick fires, the newest: when it is not missed yet, or when it
    replaces all missed ones. A clock that was set back repeats no tick, because only ticks after `after` count.
    """
    first = timing.after(after)
    if first is None or first > now:
        return TickDecision(next_at=first)
    newest = timing.newest(after, now)
    assert newest is not None  # noqa: S101  there is at least the first
    fires = now - newest <= LATE_SECONDS or missed is Missed.ONCE
    ticks = list(islice(timing.between(after, newest), MAX_COUNTED + 1))
    lost = [tick for tick in ticks if not fires or tick != newest][:MAX_COUNTED]
    # Ticks are at least a second apart, and of many only the first were counted.
    last = timing.newest(after, newest - 1.0) if fires else newest
    return TickDecision(
        due=newest if fires else None,
        reason=_reason(newest, now),
        missed=MissedTicks(first=lost[0], last=last or lost[-1], count=len(lost)) if lost else None,
        next_at=timing.after(now),
    )


def _reason(tick_at: float, now: float) -> TickReason:
    """Return the reason for the state of a tick that is noticed now."""
    if now - tick_at <= ON_TIME_SECONDS:
        return TickReason.ON_TIME
    return TickReason.LATE if now - tick_at <= LATE_SECONDS else TickReason.CAUGHT_UP
