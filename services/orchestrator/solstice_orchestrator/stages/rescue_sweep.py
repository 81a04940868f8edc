"""Take back the attempts of dead workers; every orchestrator does this for all workers.

It also removes what they left, if they ran on this machine.
"""

import asyncio
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.worker.workspaces import EndLeft, sweep

log = structlog.get_logger(__name__)


async def run_rescue(
    store: JobStore,
    *,
    every_seconds: float,
    lease_seconds: float,
    rng: random.Random,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Rescue about every `every_seconds` until cancelled.

    When the clock has jumped ahead (the machine slept, or its time was set), every lease looks expired. Then live
    workers first get time to renew; leases are renewed at least twice in their length.
    """

    async def rest(seconds: float) -> None:
        begun = clock()
        await sleep(seconds)
        leapt = clock() - begun - seconds
        if leapt > lease_seconds / 2:
            log.warning(
                LogEvent.RESCUE_PAUSED, detail=f"the clock leapt by {leapt:.0f} s; holders may renew first"
            )
            await rest(lease_seconds)

    async def rescue() -> None:
        if rescued := await store.rescue():
            log.warning(LogEvent.ATTEMPTS_RESCUED, attempts=[f"{key.job_id}#{key.number}" for key in rescued])

    await periodic(
        rescue, every_seconds=every_seconds, rng=rng, log=log, failed=LogEvent.RESCUE_PAUSED, sleep=rest
    )


async def run_sweep(root: Path, end_left: EndLeft, *, every_seconds: float, rng: random.Random) -> None:
    """Sweep the workspaces below `root` about every `every_seconds` until cancelled."""
    await periodic(
        functools.partial(sweep, root, end_left),
        every_seconds=every_seconds,
        rng=rng,
        log=log,
        failed=LogEvent.WORKSPACE_NOT_REMOVED,
    )
