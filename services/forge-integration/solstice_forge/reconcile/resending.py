"""Decides which lost deliveries a forge is asked to send again. Pure.

(its attempts, what arrived, what was asked) -> verdicts. GitHub and GitLab report failed attempts. A delivery is lost
when none of its attempts succeeded and nothing came under its id: the forge also counts a delivery as failed that we
stored but answered too late.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from solstice_forge.inbox.reconcile_state import ResendRecord
from solstice_forge.remote.hooks import Attempt

MOST_TIMES: Final = 3
"""How often a forge is asked for one delivery: a delivery that we refuse each time need not come forever."""
FIRST_PAUSE_SECONDS: Final = 600.0
"""The pause after the first time; it doubles each further time."""
OVERLAP_SECONDS: Final = 3600.0
"""How much of the searched time is searched again: attempts are listed when they have ended."""


class ResendVerdict(StrEnum):
    """The verdict about one lost delivery."""

    ARRIVED = "arrived"
    """It came nevertheless."""
    SEND = "send"
    WAIT = "wait"
    """The forge was asked for it recently."""
    GIVEN_UP = "given_up"
    """The forge was asked for it often enough."""


def failed(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the newest attempt of each delivery without a successful one, oldest first."""
    newest: dict[str, Attempt] = {}
    succeeded: set[str] = set()
    for attempt in attempts:
        if attempt.succeeded:
            succeeded.add(attempt.delivery_id)
        known = newest.get(attempt.delivery_id)
        if known is None or attempt.id > known.id:
            newest[attempt.delivery_id] = attempt
    return sorted(
        (attempt for name, attempt in newest.items() if name not in succeeded), key=lambda each: each.id
    )


def verdict(*, arrived: bool, resends: ResendRecord | None, now: float) -> ResendVerdict:
    """Return what to do about a failed delivery."""
    if arrived:
        return ResendVerdict.ARRIVED
    if resends is None:
        return ResendVerdict.SEND
    if resends.times >= MOST_TIMES:
        return ResendVerdict.GIVEN_UP
    pause = FIRST_PAUSE_SECONDS * 2.0 ** (resends.times - 1)
    # A clock that was set back must not extend the pause.
    return ResendVerdict.WAIT if abs(now - resends.requested_at) < pause else ResendVerdict.SEND


def is_past(attempt: Attempt, *, since: float, cursor: float | None) -> bool:
    """Whether this attempt, and so all later in the list, can be skipped.

    It was examined before, or is too old. `cursor` is what `next_cursor` returned: a time where the forge gives
    times, else an id.
    """
    if attempt.delivered_at is None:
        return cursor is not None and attempt.id <= cursor
    return attempt.delivered_at < max(since, (cursor or 0.0) - OVERLAP_SECONDS)


def next_cursor(attempts: Sequence[Attempt], *, began: float, cursor: float | None) -> float | None:
    """Return up to where all attempts are examined once these are."""
    if any(attempt.delivered_at is None for attempt in attempts):
        return float(max(attempt.id for attempt in attempts))
    return began if attempts else cursor
