"""Remove caches regularly that nothing uses, and what killed processes left of them."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.worker.caches.cache_store import CacheStore

LOG = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 900.0


async def run_cache_sweep(
    store: CacheStore, evicted: Callable[[int], None], *, rng: random.Random, sleep: Sleep = asyncio.sleep
) -> None:
    """Remove what is unused, until cancelled."""

    async def once() -> None:
        try:
            gone = await asyncio.to_thread(store.sweep)
        except OSError as error:
            LOG.warning(LogEvent.CACHE_SWEEP_PAUSED, detail=str(error)[:500])
            return
        if gone:
            evicted(len(gone))
            LOG.info(LogEvent.CACHES_REMOVED, entries=len(gone))

    await periodic(
        once,
        every_seconds=SWEEP_SECONDS,
        rng=rng,
        log=LOG,
        failed=LogEvent.CACHE_SWEEP_PAUSED,
        first_after="part of the interval",
        sleep=sleep,
    )
