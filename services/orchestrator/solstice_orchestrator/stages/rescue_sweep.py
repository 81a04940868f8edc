"""Take back the attempts of dead workers; every orchestrator does this for all workers."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.store.protocol import JobStore

log = structlog.get_logger("solstice_orchestrator.stages.rescue_sweep")

JITTER: Final = 0.2


async def run_rescue(
    store: JobStore,
    *,
    every_seconds: float,
    lease_seconds: float,
    rng: random.Random,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Rescue about every `every_seconds` until cancelled, with jitter.

    When the clock has jumped ahead (the machine slept, or its time was set), every lease looks expired. Then live
    workers first get time to renew; leases are renewed at least twice in their length.
    """
    pause = every_seconds * rng.uniform(1.0 - JITTER, 1.0 + JITTER)
    while True:
        begun = clock()
        await sleep(pause)
        leapt = clock() - begun - pause
        if leapt > lease_seconds / 2:
            pause = lease_seconds
            log.warning(
                LogEvent.RESCUE_HELD, detail=f"the clock leapt by {leapt:.0f} s; holders may renew first"
            )
            continue
        pause = every_seconds * rng.uniform(1.0 - JITTER, 1.0 + JITTER)
        try:
            rescued = await store.rescue()
        except StoreUnavailable as error:
            log.warning(LogEvent.RESCUE_HELD, detail=str(error))
        except Exception as error:
            # A bug that one job brings out must not stop all others, now or at every new start.
            log.exception(LogEvent.RESCUE_HELD, detail=str(error))
        else:
            if rescued:
                log.warning(
                    LogEvent.ATTEMPTS_RESCUED, attempts=[f"{key.job_id}#{key.number}" for key in rescued]
                )
