"""Forecasts are made for some jobs that wait, and judged when these have started."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.broker.protocol import BrokerHealth
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.queue_times.forecast import (
    Forecast,
    ForecastAccuracy,
    ForecastCheck,
    check_forecast,
)
from solstice_orchestrator.stages.forecast_checks import ForecastChecks
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job
from tests.stores import SUCCEEDED, WORKER, ManualClock, claimed, planned, worker_record

FORECAST = Forecast(earliest=100.0, latest=200.0)


@pytest.mark.parametrize(
    ("started_at", "judgement"),
    [
        (150.0, ForecastCheck(accuracy=ForecastAccuracy.WITHIN, error_seconds=0.0)),
        (99.5, ForecastCheck(accuracy=ForecastAccuracy.WITHIN, error_seconds=0.0)),
        (200.5, ForecastCheck(accuracy=ForecastAccuracy.WITHIN, error_seconds=0.0)),
        (90.0, ForecastCheck(accuracy=ForecastAccuracy.EARLY, error_seconds=10.0)),
        (230.0, ForecastCheck(accuracy=ForecastAccuracy.LATE, error_seconds=30.0)),
    ],
    ids=["within", "a moment before", "a moment after", "early", "late"],
)
def test_a_start_is_judged_by_its_forecast(started_at: float, judgement: ForecastCheck) -> None:
    assert check_forecast(FORECAST, started_at) == judgement


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[JobStore]:
    """Jobs of linux last 60 s, and one runs in the only slot."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_store(url, clock=clock, rng=random.Random(1), lease_seconds=10_000) as store:
        await store.register(worker_record(WORKER))
        for _ in range(4):
            await planned(store, job("true", runs_on="illumos"))
            (claim,) = await claimed(store, free={"illumos": 1})
            clock.forward(60)
            await store.finish(claim.key, SUCCEEDED)
        await planned(store, job("true", runs_on="illumos"))
        yield store


def metric_lines(metrics: Metrics) -> set[str]:
    text = metrics.render({}, BrokerHealth(connected=True)).decode()
    return {line for line in text.splitlines() if line.startswith("solstice_expected_start")}


@pytest.mark.parametrize(
    ("lasts", "met", "error"), [(60, "within", 0.0), (20, "early", 40.0), (100, "late", 40.0)], ids=str
)
async def test_the_error_of_a_forecast_is_measured_once(
    store: JobStore, clock: ManualClock, lasts: int, met: str, error: float
) -> None:
    metrics = Metrics()
    estimates = ForecastChecks(store, metrics)
    (running,) = await claimed(store, free={"illumos": 1})
    await planned(store, job("true", runs_on="illumos"))
    await estimates.round()
    clock.forward(lasts)
    await store.finish(running.key, SUCCEEDED)
    (claim,) = await claimed(store, free={"illumos": 1})
    for _ in range(3):
        await estimates.round()
    assert f'solstice_expected_starts_total{{met="{met}"}} 1.0' in metric_lines(metrics)
    assert f"solstice_expected_start_error_seconds_sum {error}" in metric_lines(metrics)
    assert "solstice_expected_start_error_seconds_count 1.0" in metric_lines(metrics)
    await store.finish(claim.key, SUCCEEDED)


async def test_a_job_that_never_starts_is_forgotten(store: JobStore, clock: ManualClock) -> None:
    metrics = Metrics()
    estimates = ForecastChecks(store, metrics)
    await claimed(store, free={"illumos": 1})
    run_id = await planned(store, job("true", runs_on="illumos"))
    await estimates.round()
    await store.cancel_run(run_id)
    await estimates.round()
    assert estimates._forecasts == {}
    assert "solstice_expected_start_error_seconds_count 0.0" in metric_lines(metrics)
