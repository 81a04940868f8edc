"""Measure the accuracy of forecasts: forecast some waiting jobs, and compare when they have started."""

import asyncio
import random
from typing import Final

import structlog

from solstice_common.messages.states import JobState
from solstice_common.runtime.periodic import Sleep, periodic
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.forecast import Forecast, check_forecast
from solstice_orchestrator.store.protocol import JobStore

log = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 30.0
AT_ONCE: Final = 5
"""The most forecasts made in one round."""
FOLLOWED: Final = 100
"""The most forecasts that wait for their jobs to start."""


class ForecastChecks:
    """Forecasts that were made and are not judged yet."""

    def __init__(self, store: JobStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._forecasts: dict[str, Forecast] = {}

    async def round(self) -> None:
        """Judge the forecasts of started jobs, and make some for new ones."""
        for job_id, forecast in list(self._forecasts.items()):
            job = await self._store.job(job_id)
            if job is None or (job.state.final and job.started_at is None):
                del self._forecasts[job_id]
            elif job.started_at is not None and job.attempt == 1:
                self._metrics.started_as_expected(check_forecast(forecast, job.started_at))
                del self._forecasts[job_id]
        followable = min(AT_ONCE, FOLLOWED - len(self._forecasts))
        newest = await self._store.jobs(state=JobState.WAITING, limit=4 * AT_ONCE)
        # First attempts only: the wait for a second one begins at another moment.
        fresh = [job for job in newest if job.job_id not in self._forecasts and job.attempt == 0]
        for job in fresh[: max(0, followable)]:
            facts = await self._store.waiting(job.job_id)
            why = None if facts is None else explain(facts)
            if why is not None and why.expected_start is not None:
                self._forecasts[job.job_id] = why.expected_start


async def run_forecast_checks(
    store: JobStore,
    *,
    metrics: Metrics,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Run a round about every `EVERY_SECONDS`, until cancelled."""
    await periodic(
        ForecastChecks(store, metrics).round,
        every_seconds=EVERY_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.FORECASTS_PAUSED,
        unavailable="debug",
        sleep=sleep,
    )
