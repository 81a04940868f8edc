"""What is old goes from the inbox, by itself: looked for now and then, and removed a little at a time."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_forge.inbox.sweeping import DAY_SECONDS, InboxCleanup, SweepResult
from solstice_forge.log_events import LogEvent

log = structlog.get_logger("solstice_forge.inbox.retention")

LOOK_SECONDS: Final = 3600.0
"""How often something old is looked for, give or take a fifth; at the start somewhere within the first of these."""
ROWS_PER_STEP: Final = 100
"""How many go in one transaction; whoever waits for it waits for some milliseconds."""
PAUSE_SECONDS: Final = 0.2
"""Between two transactions, so that others always come in between."""


async def run_retention(
    inbox: InboxCleanup,
    *,
    body_days: float,
    memory_days: float,
    rng: random.Random,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Remove bodies older than `body_days` and deliveries older than `memory_days` until cancelled; 0 keeps them for ever."""

    async def purge_old() -> None:
        bodies = await sweep(inbox.strip, _before(clock(), body_days), sleep=sleep)
        deliveries = await sweep(inbox.forget, _before(clock(), memory_days), sleep=sleep)
        if bodies or deliveries:
            log.info(LogEvent.DELIVERIES_PURGED, bodies=bodies, deliveries=deliveries)

    # The start of a replica is no moment to burden the inbox.
    await periodic(
        purge_old,
        every_seconds=LOOK_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.RETENTION_HELD,
        first_after="part of the interval",
        sleep=sleep,
    )


async def sweep(
    remove: Callable[[float, int], Awaitable[SweepResult]],
    before: float | None,
    *,
    sleep: Sleep = asyncio.sleep,
) -> int:
    """Step after step until nothing is left that is so old; how many rows that was. None: nothing goes.

    Raises StoreUnavailable; what was removed until then is gone, and asking again goes on with the rest.
    """
    total, more = 0, before is not None
    while more and before is not None:
        done = await remove(before, ROWS_PER_STEP)
        total, more = total + done.rows, done.more
        if more:
            await sleep(PAUSE_SECONDS)
    return total


def _before(now: float, days: float) -> float | None:
    return now - days * DAY_SECONDS if days else None
