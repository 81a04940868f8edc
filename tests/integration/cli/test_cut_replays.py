"""`solstice dlq replay` reports a lost broker, and completes when it is run again.

The embedded broker has neither connection nor server; the kills of `tests/chaos/test_killed_replays.py` are its outages.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from solstice_common.broker import open_broker
from solstice_orchestrator.store import JobStore, open_store
from tests.dead_letter_replays import JOBS, fill, refused, running_intake, start_replay
from tests.servers.nats_server import NatsServer
from tests.servers.proxy import fault_proxy
from tests.servers.rabbitmq import Vhost
from tests.servers.redis_server import RedisServer
from tests.servers.server import Server
from tests.traffic import wait_for_ready

DEAD = 400
RATE = 50
WORDS = ("--queue", "requests", "--json")
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
    """Interrupt a replay, run it again, and check that each dead letter is one run."""
    async with (
        open_broker(url, name="test") as broker,
        open_store(f"sqlite:///{tmp_path / 's.db'}") as store,
        fault_proxy(url) as proxy,
    ):
        await fill(broker, *(refused(number) for number in range(DEAD)))
        async with running_intake(broker, store):
            replaying = await start_replay(proxy.url(url), *WORDS, "--rate", str(RATE))
            await at_least(CUT_AT, store)
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
            again = await start_replay(url, *WORDS)
            code, report, output = await ended(again)
            assert (code, report["failed"], report["broken_off"]) == (0, {}, ""), output
            await broker.ready(30)
            await wait_for_ready(broker, JOBS.dlq, 0)
            await at_least(DEAD, store)
            await wait_for_ready(broker, JOBS.queue, 0)
        runs = (await store.runs(limit=DEAD * 2)).runs
    assert len(runs) == DEAD, "one run for each dead letter: none lost, none twice"
    assert len({run.request_id for run in runs}) == DEAD


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, Any, str]:
    """Its exit code, its report, and its standard error."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    output = out.decode() + err.decode()
    assert out, output
    (report,) = json.loads(out)["replays"]
    return process.returncode, report, output


async def at_least(count: int, store: JobStore) -> None:
    """Wait until the store has so many runs."""
    async with asyncio.timeout(60):
        while len((await store.runs(limit=count)).runs) < count:  # noqa: ASYNC110  asks a store
            await asyncio.sleep(0.01)
