"""Removes old bodies first, whole deliveries later, oldest first, in small steps. Decisions are pure."""

from collections.abc import Sequence
from typing import Final, Protocol

from solstice_common.values.value import Value

DAY_SECONDS: Final = 86_400.0

Aged = tuple[int, float]
"""The number of a delivery and when it was received."""


class SweepResult(Value, frozen=True, kw_only=True):
    """What one step removed, and whether there is more."""

    rows: int
    more: bool


class InboxCleanup(Protocol):
    """The part of the inbox that removes old data, in short steps.

    Deliveries are stored between two steps. Raises only StoreUnavailable; times in seconds since the epoch.
    """

    async def strip(self, before: float, limit: int) -> SweepResult:
        """Remove bodies and headers of the oldest deliveries received before then; the decisions stay."""
        ...

    async def forget(self, before: float, limit: int) -> SweepResult:
        """Remove the oldest deliveries received before then; their copies are not recognised afterwards.

        A delivery whose request is not yet with the broker stays.
        """
        ...

    async def forgettable(self, before: float) -> int:
        """Return how many deliveries `forget` would remove in all."""
        ...


class SweepStep(Value, frozen=True, kw_only=True):
    """The rows that are old enough, and the highest number dealt with."""

    old: Sequence[int]
    up_to: int | None
    more: bool


def step(oldest: Sequence[Aged], before: float, limit: int) -> SweepStep:
    """Decide about the oldest `limit` rows, by number.

    Numbers follow time except for slow processes: the first row that is too young ends the step, unless it is from a
    clock that was wrong by more than a day.
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
