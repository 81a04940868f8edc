"""Remove old runs regularly, a few in each transaction; every orchestrator does this."""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.store.protocol import Purged

log = structlog.get_logger(__name__)

DAY_SECONDS: Final = 86_400.0
SWEEP_SECONDS: Final = 3600.0
"""The interval between searches for old runs, give or take a fifth. The first search comes within this time."""
RUNS_PER_PURGE: Final = 50
"""Runs removed in one transaction, which blocks others for some milliseconds."""
PAUSE_SECONDS: Final = 0.2
"""The pause between two transactions, in which other writers come in."""


class PurgeableStore(Protocol):
    """The part of the job store that removes old runs."""

    async def purge(self, older_than_seconds: float, limit: int) -> Purged: ...


async def run_retention(
    store: PurgeableStore,
    *,
    days: float,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Remove runs that ended more than `days` ago, until cancelled.

    With 0 days it keeps them forever and returns at once.
    """
    if not days:
        return

    async def purge_old() -> None:
        removed = await purge_all(store, days * DAY_SECONDS, sleep=sleep)
        if removed:
            log.info(LogEvent.RUNS_PURGED, runs=removed, older_than_days=days)

    # The start of an orchestrator is no moment to burden the store.
    await periodic(
        purge_old,
        every_seconds=SWEEP_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.RETENTION_PAUSED,
        first_after="part of the interval",
        sleep=sleep,
    )


async def purge_all(
    store: PurgeableStore,
    older_than_seconds: float,
    *,
    removed: Callable[[int], None] = lambda _: None,
    sleep: Sleep = asyncio.sleep,
) -> int:
    """Remove all runs of that age in small steps, and return how many.

    `removed` is called with the number so far. Raises StoreUnavailable; runs removed before that stay removed, and
    another call goes on with the rest.
    """
    total, more = 0, True
    while more:
        step = await store.purge(older_than_seconds, RUNS_PER_PURGE)
        total, more = total + step.runs, step.more
        removed(total)
        if more:
            await sleep(PAUSE_SECONDS)
    return total
