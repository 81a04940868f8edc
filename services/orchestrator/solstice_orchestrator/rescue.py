"""Whatever a dead worker held is taken back: every orchestrator sweeps for all of them."""

import asyncio
import random
from typing import Final

import structlog
from solstice_common.errors import StoreUnavailable

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.store.protocol import JobStore

log = structlog.get_logger("solstice_orchestrator.rescue")

JITTER: Final = 0.2


async def run_rescue(store: JobStore, *, every_seconds: float, rng: random.Random) -> None:
    """Sweep about `every_seconds` until cancelled; orchestrators that started together drift apart."""
    while True:
        await asyncio.sleep(every_seconds * rng.uniform(1.0 - JITTER, 1.0 + JITTER))
        try:
            rescued = await store.rescue()
        except StoreUnavailable as error:
            log.warning(LogEvent.RESCUE_HELD, detail=str(error))
            continue
        if rescued:
            log.warning(LogEvent.ATTEMPTS_RESCUED, attempts=[f"{key.job_id}#{key.number}" for key in rescued])
