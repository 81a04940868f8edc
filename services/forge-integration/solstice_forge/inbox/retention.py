"""Removes old data from the inbox periodically, in small steps."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_forge.inbox.sweeping import DAY_SECONDS, InboxCleanup, SweepResult
from solstice_forge.log_events import LogEvent

log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 3600.0
"""The interval between two searches for old rows, give or take a fifth; the first comes at a random time within it."""
ROWS_PER_STEP: Final = 100
"""How many rows one transaction removes; other writers wait for it for some milliseconds."""
PAUSE_SECONDS: Final = 0.2
"""The pause between two transactions, in which other writers continue."""


async def run_retention(
    inbox: InboxCleanup,
    *,
    body_days: float,
    memory_days: float,
    rng: random.Random,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Remove bodies older than `body_days` and deliveries older than `memory_days` until cancelled.

    0 means that they are never removed.
    """

    async def purge_old() -> None:
        bodies = await sweep(inbox.strip, _before(clock(), body_days), sleep=sleep)
        deliveries = await sweep(inbox.forget, _before(clock(), memory_days), sleep=sleep)
        if bodies or deliveries:
            log.info(LogEvent.DELIVERIES_PURGED, bodies=bodies, deliveries=deliveries)

    # The start of a replica is no moment to burden the inbox.
    await periodic(
        purge_old,
        every_seconds=SWEEP_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.RETENTION_PAUSED,
        first_after="part of the interval",
        sleep=sleep,
    )


async def sweep(
    remove: Callable[[float, int], Awaitable[SweepResult]],
    before: float | None,
    *,
    sleep: Sleep = asyncio.sleep,
) -> int:
    """Run steps until no row is older than `before`; return how many were removed.

    None: nothing is removed. Raises StoreUnavailable; rows removed until then are gone, and the next call continues.
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
