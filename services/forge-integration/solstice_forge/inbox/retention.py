"""What is old goes from the inbox, by itself: looked for now and then, and removed a little at a time."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_forge.inbox.sweeping import DAY_SECONDS, InboxCleanup, SweepResult
from solstice_forge.log_events import LogEvent

log = structlog.get_logger("solstice_forge.inbox.retention")

LOOK_SECONDS: Final = 3600.0
"""How often something old is looked for, give or take a fifth; at the start somewhere within the first of these."""
JITTER: Final = 0.2
ROWS_PER_STEP: Final = 100
"""How many go in one transaction; whoever waits for it waits for some milliseconds."""
PAUSE_SECONDS: Final = 0.2
"""Between two transactions, so that others always come in between."""

Sleep = Callable[[float], Awaitable[None]]


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
    # Replicas that started together drift apart, and a start is no moment to burden the inbox.
    await sleep(LOOK_SECONDS * rng.uniform(0.0, 1.0))
    while True:
        try:
            bodies = await sweep(inbox.strip, _before(clock(), body_days), sleep=sleep)
            deliveries = await sweep(inbox.forget, _before(clock(), memory_days), sleep=sleep)
        except StoreUnavailable as error:
            log.warning(LogEvent.RETENTION_HELD, detail=str(error))
        except Exception as error:
            # A mistake of ours about an old delivery must not stop new ones; what is kept too long harms nobody.
            log.exception(LogEvent.RETENTION_HELD, detail=str(error))
        else:
            if bodies or deliveries:
                log.info(LogEvent.DELIVERIES_PURGED, bodies=bodies, deliveries=deliveries)
        await sleep(LOOK_SECONDS * rng.uniform(1.0 - JITTER, 1.0 + JITTER))


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
