"""Three killed replays beside a real intake lose no dead letter and count none twice.

`REPLAYS=20000 ./just test tests/chaos/test_killed_replays.py -s` is the full run, which prints its figures; by default
there are fewer.
"""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from solstice_common.broker import Broker, open_broker
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.store import JobStore, open_store
from tests.brokers import broker_url, pytest_generate_tests
from tests.contract.test_broker import ready_count
from tests.integration.cli.test_dlq_commands import JOBS, TOPOLOGY, environment, refused

__all__ = ["broker_url", "pytest_generate_tests"]

COUNT = int(os.environ.get("REPLAYS", "900"))
KILLS = 3
AT_ONCE = 500
PATIENCE_SECONDS = 600


@dataclass
class Watched:
    """A replay's process, and the most memory it was seen to have."""

    process: asyncio.subprocess.Process
    most_kib: int = 0

    async def ended(self) -> str:
        """Watch it until it ends; returns what it said."""
        saying = asyncio.ensure_future(self.process.communicate())
        while not saying.done():
            self._look()
            await asyncio.wait([saying], timeout=0.05)
        return saying.result()[0].decode()

    def _look(self) -> None:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        except OSError:
            return  # ended, or not Linux
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.most_kib = max(self.most_kib, int(line.split()[1]))


async def test_killed_replays_lose_nothing_and_nothing_counts_twice(broker_url: str, tmp_path: Path) -> None:
    rng, database = random.Random(20260301), tmp_path / "s.db"
    async with (
        open_broker(broker_url, name="test") as broker,
        open_store(f"sqlite:///{database}") as store,
    ):
        await fill(broker)
        began = time.monotonic()
        async with intake(broker, store):
            for _ in range(KILLS):
                await killed_replay(broker_url, database, rng.randrange(COUNT // 30, COUNT // 10))
            last, before = await start(broker_url), stored(database)
            resumed = time.monotonic()
            report = await last.ended()
            took = time.monotonic() - resumed
            assert last.process.returncode == 0, report
            await until(lambda: stored(database) >= COUNT)
            await ready_count(broker, JOBS.dlq, 0)
            await ready_count(broker, JOBS.queue, 0)
        with closing(sqlite3.connect(database)) as connection:
            runs, requests = connection.execute(
                "SELECT count(*), count(DISTINCT request_key) FROM runs"
            ).fetchone()
    print(  # noqa: T201  the figures of a full run
        f"\n{broker.capabilities.transport}: {COUNT} dead letters, {KILLS} kills: lost {COUNT - requests}, duplicate effects"
        f" {runs - requests}; the last replay: {(COUNT - before) / took:.0f}/s, {last.most_kib / 1024:.0f} MiB;"
        f" all in {time.monotonic() - began:.1f} s"
    )
    assert (runs, requests) == (COUNT, COUNT), "one run for each dead letter: none lost, none twice"


async def fill(broker: Broker) -> None:
    await broker.ready(30)
    await broker.declare(TOPOLOGY)
    for start_at in range(0, COUNT, AT_ONCE):
        numbers = range(start_at, min(start_at + AT_ONCE, COUNT))
        outcomes = await broker.publish([refused(number) for number in numbers])
        assert all(each.confirmed for each in outcomes)
    await ready_count(broker, JOBS.dlq, COUNT)


@asynccontextmanager
async def intake(broker: Broker, store: JobStore) -> AsyncIterator[None]:
    stage = Intake(broker=broker, store=store, metrics=Metrics(), rng=random.Random(1))
    running = asyncio.create_task(stage.run(JOBS.queue, TOPOLOGY, prefetch=256))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def killed_replay(url: str, database: Path, more: int) -> None:
    """Start a replay, and kill it once `more` further requests are stored.

    It is slowed down, so that it cannot be through before, however far the stores lag behind.
    """
    before = stored(database)
    replay = await start(url, "--rate", str(max(60, COUNT // 12)))
    await until(lambda: stored(database) >= before + more or replay.process.returncode is not None)
    assert replay.process.returncode is None, "it was to be killed on its way"
    replay.process.kill()
    await replay.process.wait()


async def start(url: str, *words: str) -> Watched:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "solstice_cli", "dlq", "replay", "--all", "--watch", "0", *words),
        env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Watched(process)


def stored(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  asks a file
            await asyncio.sleep(0.02)
