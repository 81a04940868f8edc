"""The commit status text of a waiting job: jobs ahead, and expected start. Pure.

The text is coarse, because a forge accepts a limited number of statuses: it changes when the difference matters to
people.
"""

import math
from typing import Final

from solstice_orchestrator.queue_times.waits import OWNER, WaitExplanation, WaitFacts, WaitReason

_COUNTED: Final = 10
_STEPS: Final = (1000, 500, 200, 100, 50, 20, 10)
_MINUTES: Final = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90)


def waiting_text(facts: WaitFacts, why: WaitExplanation, *, saturated: bool = False) -> str:
    """Return one line of about a hundred characters at most.

    For example `waiting: 2 ahead on linux, starts in about 5 min`. `saturated`: so many jobs wait that no new request
    is taken from the queue.
    """
    match why.reason:
        case WaitReason.SLOTS_BUSY:
            words = f"waiting: {_ahead(why.ahead or 0)} on {facts.runs_on}"
        case WaitReason.REPOSITORY_CAP:
            words = f"waiting: its repository runs as many jobs as it may, {_ahead(why.ahead or 0)}"
        case WaitReason.OWNER_CAP:
            words = f"waiting: its owner runs as many jobs as it may, {_ahead(why.ahead or 0)}"
        case WaitReason.NO_WORKER_FOR_LABEL:
            words = f"waiting: no worker serves {facts.runs_on}"
        case WaitReason.PAUSED:
            words = f"waiting: the workers of {facts.runs_on} take no jobs now"
        case WaitReason.RATE_LIMITED if why.resource == OWNER:
            words = f"waiting: {_ahead(why.ahead or 0)} on {facts.runs_on}, its owner has started as many as it may"
        case WaitReason.RATE_LIMITED:
            words = f"waiting: {_ahead(why.ahead or 0)} on {facts.runs_on}, as fast as they may start"
        case WaitReason.GOVERNOR:
            words = f"waiting: governor({why.resource}) on the workers of {facts.runs_on}"
        case _:
            words = f"waiting: {why.reason.value.replace('_', ' ')}"
    if saturated:
        words += " (the system is full)"
    start = why.expected_start
    return words if start is None else f"{words}, {_starts(start.latest - facts.now)}"


def _ahead(count: int) -> str:
    if count == 0:
        return "next"
    if count < _COUNTED:
        return f"{count} ahead"
    return next(f"more than {step} ahead" for step in _STEPS if count >= step)


def _starts(seconds: float) -> str:
    """Return the time until the start, rounded up to a usual number."""
    minutes = max(0.0, seconds) / 60
    for bound in _MINUTES:
        if minutes <= bound:
            return f"starts within about {bound} min"
    return f"starts within about {math.ceil(minutes / 60)} h"
