"""Intake pauses by the backlog and by the speed of the workers."""

from pathlib import Path

import pytest

from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.backpressure import LEAST_LIMIT
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.stages.backlog import SPEED_COUNTS, JobBacklog
from solstice_orchestrator.store import open_store
from tests.stores import SUCCEEDED, WORKER, ManualClock, claimed, sqlite_store, waiting_jobs, worker_record


@pytest.mark.parametrize(("seconds", "paused"), [(0.0, False), (60.0, True), (3600.0, False)])
async def test_intake_is_paused_once_the_backlog_would_take_too_long(
    tmp_path: Path, seconds: float, paused: bool
) -> None:
    clock = ManualClock()
    async with open_store(sqlite_store(tmp_path), clock=clock, lease_seconds=1e6) as store:
        backlog = JobBacklog(store=store, most=1000, metrics=Metrics(), seconds=seconds)
        await store.register(worker_record(WORKER, capacity=Capacity(slots={"linux": 2}, limit=2)))
        await waiting_jobs(store, LEAST_LIMIT + 10)
        await backlog.recount()
        assert not backlog.paused, "no job has ended yet, so the speed is unknown"
        for claim in await claimed(store, free={"linux": 2}, limit=2):
            clock.forward(10)
            await store.finish(claim.key, SUCCEEDED)
        # About one job in 7 seconds: the backlog takes more than ten minutes.
        for _ in range(SPEED_COUNTS):
            await backlog.recount()
        assert backlog.paused is paused
