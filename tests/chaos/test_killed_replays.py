"""Three killed replays beside a real intake lose no dead letter and count none twice.

`REPLAYS=20000 ./just test tests/chaos/test_killed_replays.py -s` is the full run, which prints its figures; by default
there are fewer.
"""

import asyncio
import logging
import os
import random
import sqlite3
import time
from asyncio.subprocess import STDOUT
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from solstice_common.broker import open_broker
from solstice_orchestrator.store import open_store
from tests.brokers import broker_url, pytest_generate_tests
from tests.dead_letter_replays import JOBS, fill, refused, running_intake, start_replay
from tests.traffic import wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]

COUNT = int(os.environ.get("REPLAYS", "900"))
KILLS = 3
WAIT_SECONDS = 600


@dataclass
class Watched:
    """A replay's process, and its largest observed memory."""

    process: asyncio.subprocess.Process
    most_kib: int = 0

    async def ended(self) -> str:
        """Watch the process until it ends; return its output."""
        saying = asyncio.ensure_future(self.process.communicate())
        while not saying.done():
            self._read_status()
            await asyncio.wait([saying], timeout=0.05)
        return saying.result()[0].decode()

    def _read_status(self) -> None:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        except OSError:
            return  # ended, or not Linux
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.most_kib = max(self.most_kib, int(line.split()[1]))


@pytest.mark.timeout(max(120, COUNT // 10))  # a full run takes minutes, on a busy machine many
async def test_killed_replays_lose_nothing_and_nothing_counts_twice(broker_url: str, tmp_path: Path) -> None:
    rng, database = random.Random(20260301), tmp_path / "s.db"
    # Among the ids of all requests, the figures would be hard to find.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    async with (
        open_broker(broker_url, name="test") as broker,
        open_store(f"sqlite:///{database}") as store,
    ):
        await fill(broker, *(refused(number) for number in range(COUNT)))
        began = time.monotonic()
        async with running_intake(broker, store, prefetch=256):
            for _ in range(KILLS):
                await killed_replay(broker_url, database, rng.randrange(COUNT // 30, COUNT // 10))
            last, before = Watched(await start_replay(broker_url, "--all", stderr=STDOUT)), stored(database)
            resumed = time.monotonic()
            report = await last.ended()
            took = time.monotonic() - resumed
            assert last.process.returncode == 0, report
            await until(lambda: stored(database) >= COUNT)
            await wait_for_ready(broker, JOBS.dlq, 0)
            await wait_for_ready(broker, JOBS.queue, 0)
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


async def killed_replay(url: str, database: Path, more: int) -> None:
    """Start a replay, and kill it once `more` further requests are stored.

    It is slowed down, so that it cannot be through before, however far the stores lag behind.
    """
    before = stored(database)
    process = await start_replay(url, "--all", "--rate", str(max(60, COUNT // 12)), stderr=STDOUT)
    await until(lambda: stored(database) >= before + more or process.returncode is not None)
    assert process.returncode is None, "it was to be killed on its way"
    process.kill()
    await process.wait()


def stored(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():  # noqa: ASYNC110  asks a file
            await asyncio.sleep(0.02)
