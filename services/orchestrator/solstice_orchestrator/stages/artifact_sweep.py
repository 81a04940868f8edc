"""Remove expired artifacts regularly: their records, then archives that nothing needs."""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives

LOG = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 3600.0
AT_ONCE: Final = 500
"""Records or archives of one step."""
NEEDED_SECONDS: Final = 86_400.0


class ExpiringStore(Protocol):
    """The part of the job store that forgets artifacts."""

    async def expire_artifacts(self, limit: int) -> int: ...

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]: ...


async def run_artifact_sweep(
    store: ExpiringStore, directory: ArtifactArchives, *, rng: random.Random, sleep: Sleep = asyncio.sleep
) -> None:
    """Remove what has expired, until cancelled."""

    async def once() -> None:
        records, archives = await sweep_artifacts(store, directory)
        if records or archives:
            LOG.info(LogEvent.ARTIFACTS_REMOVED, records=records, archives=archives)

    await periodic(
        once,
        every_seconds=SWEEP_SECONDS,
        rng=rng,
        log=LOG,
        failed=LogEvent.ARTIFACT_SWEEP_PAUSED,
        first_after="part of the interval",
        sleep=sleep,
    )


async def sweep_artifacts(
    store: ExpiringStore, directory: ArtifactArchives, clock: Callable[[], float] = time.time
) -> tuple[int, int]:
    """Remove all that has expired; return how many records, and how many archives.

    An archive goes when its own time is over and no record of this store names it. So orchestrators of several stores
    may share a directory, and a copy of a directory that lost its times loses no artifact.
    """
    records = 0
    while removed := await store.expire_artifacts(AT_ONCE):
        records += removed
    if not directory.exists:
        return records, 0
    archives = await asyncio.to_thread(directory.remove_left, clock())
    while digests := await asyncio.to_thread(directory.expired, clock(), AT_ONCE):
        recorded = await store.recorded_digests(digests)
        now = clock()
        await asyncio.to_thread(
            directory.need, [each for each in digests if each in recorded], now + NEEDED_SECONDS
        )
        free = [each for each in digests if each not in recorded]
        archives += await asyncio.to_thread(directory.remove, free, now)
    return records, archives
