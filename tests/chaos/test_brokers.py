"""Every broker under seeded faults: each accepted push is built and shown once.

`CHAOS_SCHEDULES=5 CHAOS_JOBS=500 ./just test tests/chaos/test_brokers.py -s` is the full run, 10,000 jobs and
more in all, and prints its counts; by default there is one short schedule for each broker, and no cluster.
"""

import os
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.brokers import pytest_generate_tests
from tests.chaos.faults.brokers import BrokerUnderFaults, broker_under_faults, cluster_under_faults
from tests.chaos.faults.line import JOBS_OF_A_PUSH, open_line
from tests.chaos.faults.schedule import draw

__all__ = ["pytest_generate_tests"]

SCHEDULES: Final = int(os.environ.get("CHAOS_SCHEDULES", "1"))
JOBS: Final = int(os.environ.get("CHAOS_JOBS", "60"))
STEPS: Final = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_every_promise_is_kept_once_under_faults_of_the_broker(
    broker_kind: str, seed: int, tmp_path: Path
) -> None:
    await assert_promises_hold(broker_kind, broker_under_faults(broker_kind, tmp_path), seed, tmp_path)


# Three nodes take a minute to start and to elect: the suite of every commit shows one node alone.
@pytest.mark.skipif("CHAOS_SCHEDULES" not in os.environ, reason="not asked for: CHAOS_SCHEDULES=1 runs it")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_every_promise_is_kept_once_under_faults_of_a_cluster(seed: int, tmp_path: Path) -> None:
    await assert_promises_hold("three RabbitMQ nodes", cluster_under_faults(), seed, tmp_path)


async def assert_promises_hold(
    name: str, broker: AbstractAsyncContextManager[BrokerUnderFaults], seed: int, directory: Path
) -> None:
    begun = time.monotonic()
    async with open_line(broker, directory) as line:
        steps = draw(seed, line.broker.faults, steps=max(STEPS, JOBS // 50))
        report = await line.run(steps, JOBS // JOBS_OF_A_PUSH)
    faults = ", ".join(step.fault for step in steps)
    print(f"\n{name}, seed {seed}: {report}, in {time.monotonic() - begun:.0f} s; {faults}")  # noqa: T201  the full run is read
    assert report.promised >= JOBS // JOBS_OF_A_PUSH
    assert report.clean, report
