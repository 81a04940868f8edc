"""How good our forecasts are: now and then some jobs that wait are asked about, and looked at again when they started."""

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

log = structlog.get_logger("solstice_orchestrator.stages.forecast_checks")

EVERY_SECONDS: Final = 30.0
AT_ONCE: Final = 5
"""So many jobs at most are asked about in one round."""
FOLLOWED: Final = 100
"""So many at most are waited for."""


class ForecastChecks:
    """Forecasts that were made, until it is known what became of them."""

    def __init__(self, store: JobStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._made: dict[str, Forecast] = {}

    async def round(self) -> None:
        """Judge the forecasts of jobs that have started, and make some for jobs that have come since."""
        for job_id, forecast in list(self._made.items()):
            job = await self._store.job(job_id)
            if job is None or (job.state.final and job.started_at is None):
                del self._made[job_id]
            elif job.started_at is not None and job.attempt == 1:
                self._metrics.started_as_expected(check_forecast(forecast, job.started_at))
                del self._made[job_id]
        room = min(AT_ONCE, FOLLOWED - len(self._made))
        newest = await self._store.jobs(state=JobState.WAITING, limit=4 * AT_ONCE)
        # Not those that were tried before: a second wait begins at another moment.
        fresh = [job for job in newest if job.job_id not in self._made and job.attempt == 0]
        for job in fresh[: max(0, room)]:
            facts = await self._store.waiting(job.job_id)
            why = None if facts is None else explain(facts)
            if why is not None and why.expected_start is not None:
                self._made[job.job_id] = why.expected_start


async def run_forecast_checks(
    store: JobStore,
    *,
    metrics: Metrics,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """A round about every `EVERY_SECONDS`, until cancelled."""
    await periodic(
        ForecastChecks(store, metrics).round,
        every_seconds=EVERY_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.ESTIMATES_HELD,
        unavailable="debug",
        sleep=sleep,
    )
