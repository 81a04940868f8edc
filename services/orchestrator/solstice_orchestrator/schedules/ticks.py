"""What is to be done about the ticks of a schedule that have come: which one fires, and which were missed. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from solstice_common.messages.schedules import Missed
from solstice_orchestrator.schedules.cron import Timing

ON_TIME_SECONDS: Final = 30.0
"""A tick that fires within this is on time: so late a look may be that no notification came for."""
LATE_SECONDS: Final = 120.0
"""A tick that is noticed later than this was missed; until then it fires, and is called late."""
MAX_COUNTED: Final = 1000
"""So many missed ticks are counted one by one; of more it is known that they were more."""
RETRY_BASE_SECONDS: Final = 5.0
RETRY_CAP_SECONDS: Final = 300.0
"""A forge that is away is asked again about every few minutes, until the next tick."""
KEPT_TICKS: Final = 100
"""Of each schedule, besides what has not ended."""


class TickState(StrEnum):
    """What became of a tick."""

    DUE = "due"
    """It fires as soon as the forge has said what the branch holds."""
    FIRED = "fired"
    SKIPPED = "skipped"
    FAILED = "failed"


class TickReason(StrEnum):
    """Why a tick is in its state."""

    ON_TIME = "on_time"
    LATE = "late"
    """It fired more than ON_TIME_SECONDS after it was due: no orchestrator was there, or the forge did not answer."""
    CAUGHT_UP = "caught_up"
    """It makes up for what was missed."""
    BY_HAND = "by_hand"
    MISSED = "missed"
    """Nobody was there."""
    STILL_RUNNING = "still_running"
    """The run before it had not ended."""
    PAUSED = "paused"
    """The schedule was paused before it could fire."""
    BRANCH_GONE = "branch_gone"
    """The repository has no such branch."""
    UNREADABLE = "unreadable"
    """There is no such repository, or it is not for us."""
    FORGE_AWAY = "forge_away"
    """The forge did not answer."""
    OVERTAKEN = "overtaken"
    """The forge did not answer before the next tick came."""
    NOT_A_REQUEST = "not_a_request"
    """What it would have asked for cannot be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedTicks:
    """Ticks that were missed."""

    first: float
    last: float
    count: int
    """At least so many, when it is MAX_COUNTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickDecision:
    """Every tick up to a moment is one of these."""

    due: float | None = None
    """To be fired."""
    reason: TickReason = TickReason.ON_TIME
    missed: MissedTicks | None = None
    next_at: float | None = None
    """The first tick later than that moment; None when none comes."""


def decide_ticks(timing: Timing, *, after: float, now: float, missed: Missed) -> TickDecision:
    """What the ticks later than `after` and not later than `now` are; `after` is where the last look ended.

    One of them fires at most, the newest: when it is not missed yet, or when it makes up for all. A clock that was set back
    brings no tick twice, for it is asked only for those that are later than what was considered.
    """
    first = timing.after(after)
    if first is None or first > now:
        return TickDecision(next_at=first)
    newest = timing.newest(after, now)
    assert newest is not None  # noqa: S101  there is at least the first
    fires = now - newest <= LATE_SECONDS or missed is Missed.ONCE
    ticks = list(islice(timing.between(after, newest), MAX_COUNTED + 1))
    lost = [tick for tick in ticks if not fires or tick != newest][:MAX_COUNTED]
    # Ticks are a second apart at least, and of many only the first were counted.
    last = timing.newest(after, newest - 1.0) if fires else newest
    return TickDecision(
        due=newest if fires else None,
        reason=_reason(newest, now),
        missed=MissedTicks(first=lost[0], last=last or lost[-1], count=len(lost)) if lost else None,
        next_at=timing.after(now),
    )


def _reason(tick_at: float, now: float) -> TickReason:
    """What a tick is called that is noticed now."""
    if now - tick_at <= ON_TIME_SECONDS:
        return TickReason.ON_TIME
    return TickReason.LATE if now - tick_at <= LATE_SECONDS else TickReason.CAUGHT_UP
