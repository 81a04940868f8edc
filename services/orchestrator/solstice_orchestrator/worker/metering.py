"""An executor that records metrics of its attempts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredExecutor:
    """Runs as `executor` does, and records how each attempt ended and how long it took."""

    executor: Executor
    metrics: Metrics
    isolates: bool
    ended: Callable[[Outcome], None]
    """Called with the outcome of each attempt."""

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        begun = time.monotonic()
        outcome = await self.executor.run(execution, log, stop)
        self.ended(outcome)
        self.metrics.job_finished(execution.spec.runs_on, outcome, time.monotonic() - begun)
        return outcome
