"""`solstice dlq replay` whose broker goes away says what happened, and is run again.

The embedded broker has neither connection nor server; the kills of `test_dlq_commands` are its outages.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from solstice_common.broker import Broker, open_broker
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.intake import Intake
from solstice_orchestrator.store import open_store
from tests.contract.test_broker import ready_count
from tests.integration.cli.test_dlq_commands import JOBS, TOPOLOGY, environment, fill, refused, store_size
from tests.servers.nats_server import NatsServer
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.servers.redis_server import RedisServer
from tests.servers.server import Server

DEAD = 400
RATE = 50
CUT_AT = 40
"""So many are stored before the fault, of eight seconds of replaying: a busy machine may lag behind for most of them."""
FAULTS = pytest.mark.parametrize("fault", ["connections cut", "server killed"])


@FAULTS
async def test_on_redis(fault: str, tmp_path: Path) -> None:
    with RedisServer() as server:
        await replayed_through_a_fault(fault, server, server.url, tmp_path)


@FAULTS
async def test_on_nats(fault: str, tmp_path: Path) -> None:
    with NatsServer() as server:
        await replayed_through_a_fault(fault, server, server.url, tmp_path)


@FAULTS
async def test_on_rabbitmq(fault: str, tmp_path: Path, own_rabbitmq_vhost: Vhost) -> None:
    await replayed_through_a_fault(fault, own_rabbitmq_vhost.server, own_rabbitmq_vhost.url, tmp_path)


async def replayed_through_a_fault(fault: str, server: Server, url: str, tmp_path: Path) -> None:
    """Interrupt a replay, run it again, and see that each dead letter is one run."""
    async with (
        open_broker(url, name="test") as broker,
        open_store(f"sqlite:///{tmp_path / 's.db'}") as store,
        fault_proxy(url) as proxy,
    ):
        await fill(broker, *(refused(number) for number in range(DEAD)))
        async with intake(broker, store):
            replaying = await start(proxy.url(url), "--rate", str(RATE))
            await at_least(CUT_AT, lambda: store_size(store))
            assert replaying.returncode is None, "the fault was to come on its way"
            if fault == "server killed":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            else:
                proxy.drop()
            code, report, output = await ended(replaying)
            assert code == 1, output
            assert 0 < len(report["sent"]) < DEAD
            assert report["broken_off"], report
            again = await start(url)
            code, report, output = await ended(again)
            assert (code, report["failed"], report["broken_off"]) == (0, {}, ""), output
            await broker.ready(30)
            await ready_count(broker, JOBS.dlq, 0)
            await at_least(DEAD, lambda: store_size(store))
            await ready_count(broker, JOBS.queue, 0)
        runs = (await store.runs(limit=DEAD * 2)).runs
    assert len(runs) == DEAD, "one run for each dead letter: none lost, none twice"
    assert len({run.request_id for run in runs}) == DEAD


@asynccontextmanager
async def intake(broker: Broker, store: Any) -> AsyncIterator[None]:
    stage = Intake(broker=broker, store=store, metrics=Metrics(), rng=random.Random(1))
    running = asyncio.create_task(stage.run(JOBS.queue, TOPOLOGY, prefetch=64))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def start(url: str, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "solstice_cli", "dlq", "replay"),
        *("--queue", "requests", "--watch", "0", "--json", *words),
        env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, Any, str]:
    """Its exit code, what it reported, and what it said beside that."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    output = out.decode() + err.decode()
    assert out, output
    (report,) = json.loads(out)["replays"]
    return process.returncode, report, output


async def at_least(count: int, ask: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while await ask() < count:  # noqa: ASYNC110  asks a store
            await asyncio.sleep(0.01)
