"""Which lost deliveries a forge is asked to send again: (its attempts, what arrived, what was asked) -> verdicts. Pure.

GitHub and GitLab say which attempts failed. A delivery is lost when none of its attempts succeeded and nothing came under its
id: we may have kept what the forge took for a failure, because our answer was too late for it.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from solstice_forge.inbox.reconcile_state import ResendRecord
from solstice_forge.remote.hooks import Attempt

MOST_TIMES: Final = 3
"""So often a forge is asked for one delivery: what we refuse each time, it need not send for ever."""
FIRST_PAUSE_SECONDS: Final = 600.0
"""After the first time; doubled after each further one."""
OVERLAP_SECONDS: Final = 3600.0
"""So much of what was looked through before is looked at again: attempts are listed when they have ended."""


class ResendVerdict(StrEnum):
    """About one lost delivery."""

    ARRIVED = "arrived"
    """It came after all."""
    SEND = "send"
    WAIT = "wait"
    """The forge was asked for it lately."""
    GIVEN_UP = "given_up"
    """The forge was asked for it often enough."""


def failed(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The newest attempt of each delivery of which none succeeded, oldest first."""
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
    """What to do about a delivery that failed."""
    if arrived:
        return ResendVerdict.ARRIVED
    if resends is None:
        return ResendVerdict.SEND
    if resends.times >= MOST_TIMES:
        return ResendVerdict.GIVEN_UP
    pause = FIRST_PAUSE_SECONDS * 2.0 ** (resends.times - 1)
    # A clock that was set back must not stop it for longer.
    return ResendVerdict.WAIT if abs(now - resends.asked_at) < pause else ResendVerdict.SEND


def is_past(attempt: Attempt, *, since: float, looked_to: float | None) -> bool:
    """Whether it, and so whatever is listed after it, was dealt with before or is too old.

    `looked_to` is what `mark` gave: a time where the forge tells times, else an id.
    """
    if attempt.delivered_at is None:
        return looked_to is not None and attempt.id <= looked_to
    return attempt.delivered_at < max(since, (looked_to or 0.0) - OVERLAP_SECONDS)


def mark(attempts: Sequence[Attempt], *, began: float, looked_to: float | None) -> float | None:
    """Up to where everything is dealt with once these are."""
    if any(attempt.delivered_at is None for attempt in attempts):
        return float(max(attempt.id for attempt in attempts))
    return began if attempts else looked_to
