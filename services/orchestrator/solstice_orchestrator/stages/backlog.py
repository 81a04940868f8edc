"""Measure the store's backlog and the speed of the workers, and pause intake accordingly."""

import asyncio
import random
from typing import Final

import structlog

from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.queue_times.demand import jobs_per_second
from solstice_orchestrator.scheduling.backpressure import intake_limit, pauses_intake
from solstice_orchestrator.store.protocol import JobStore

log = structlog.get_logger(__name__)

COUNT_SECONDS: Final = 1.0
SPEED_COUNTS: Final = 10
"""The speed is measured at every tenth count: it needs the durations of recent jobs."""


class JobBacklog:
    """The number of runs to plan and of waiting jobs, compared with MAX_BACKLOG and INTAKE_SECONDS.

    With MAX_BACKLOG 0, intake is never paused.
    """

    def __init__(self, *, store: JobStore, most: int, metrics: Metrics, seconds: float = 0.0) -> None:
        """`seconds`: intake pauses once the backlog would take so long; 0: never."""
        self._store = store
        self._most = most
        self._seconds = seconds
        self._limit = most
        self._counts = 0
        self._metrics = metrics
        self._count = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    @property
    def limited(self) -> bool:
        """Whether the backlog has a limit, so that intake can be paused."""
        return self._most > 0

    @property
    def paused(self) -> bool:
        """Whether intake is paused now."""
        return not self._has_capacity.is_set()

    async def wait_for_capacity(self) -> None:
        """Wait until intake is not paused."""
        await self._has_capacity.wait()

    def count_new_runs(self, runs: int) -> None:
        """Add runs admitted since the last count: there may be thousands within one second."""
        if self.limited:
            self._decide(self._count + runs)

    async def recount(self) -> None:
        """Count the backlog again, and measure the speed if it is time. Raises StoreUnavailable."""
        if self._seconds and self._counts % SPEED_COUNTS == 0:
            speed = jobs_per_second(await self._store.demand(0.0))
            self._limit = intake_limit(self._most, jobs_per_second=speed, seconds=self._seconds)
        self._counts += 1
        self._decide(await self._store.backlog(self._most))

    def _decide(self, count: int) -> None:
        paused = pauses_intake(count, self._limit, paused=self.paused)
        if paused and not self.paused:
            self._has_capacity.clear()
            log.warning(LogEvent.INTAKE_FULL, backlog=count, most=self._limit)
        elif not paused and self.paused:
            self._has_capacity.set()
            log.info(LogEvent.INTAKE_HAS_ROOM, backlog=count, most=self._limit)
        self._count = count
        self._metrics.backlog(count, limit=self._limit, paused=paused)


async def run_backlog(
    backlog: JobBacklog,
    *,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Count the backlog about every COUNT_SECONDS, until cancelled; return at once without a limit."""
    if not backlog.limited:
        return
    await periodic(
        backlog.recount,
        every_seconds=COUNT_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.BACKLOG_UNKNOWN,
        unavailable="debug",
        first_after="nothing",
        sleep=sleep,
    )
