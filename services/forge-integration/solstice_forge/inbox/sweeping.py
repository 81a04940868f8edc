"""What the inbox forgets: first bodies, later whole deliveries, the oldest first, a little at a time. Decisions are pure."""

from collections.abc import Sequence
from typing import Final, Protocol

from solstice_common.values import Value

DAY_SECONDS: Final = 86_400.0

Aged = tuple[int, float]
"""Number of a delivery, and when it was received."""


class SweepResult(Value, frozen=True, kw_only=True):
    """What one step removed, and whether there is more."""

    rows: int
    more: bool


class InboxCleanup(Protocol):
    """The part of the inbox that forgets. Each step is short, and whoever keeps a delivery comes in between.

    Raises only StoreUnavailable; times in seconds since the epoch.
    """

    async def strip(self, before: float, limit: int) -> SweepResult:
        """Remove bodies and headers of the oldest deliveries that were received before; the decisions stay."""
        ...

    async def forget(self, before: float, limit: int) -> SweepResult:
        """Remove the oldest deliveries that were received before, and with them the memory that they came.

        Never one whose request is not with the broker yet.
        """
        ...

    async def forgettable(self, before: float) -> int:
        """How many deliveries `forget` would remove in all."""
        ...


class SweepStep(Value, frozen=True, kw_only=True):
    """Which of the rows looked at are old enough, and up to which number all are dealt with."""

    old: Sequence[int]
    up_to: int | None
    more: bool


def step(oldest: Sequence[Aged], before: float, limit: int) -> SweepStep:
    """What to do about the oldest `limit` rows, by number.

    Numbers follow time but for slow processes: the first that is too young ends the step, unless it is from a clock
    that was wrong by more than a day.
    """
    old: list[int] = []
    up_to: int | None = None
    for row_id, received_at in oldest:
        if received_at < before:
            old.append(row_id)
        elif received_at < before + DAY_SECONDS:
            return SweepStep(old=old, up_to=up_to, more=False)
        up_to = row_id
    return SweepStep(old=old, up_to=up_to, more=len(oldest) == limit and bool(old))
