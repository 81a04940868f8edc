"""A power cut under a server: what a durable broker confirmed is there afterwards.

`POWER_CUTS=5 ./just test tests/chaos/test_power_cuts.py -s` cuts the power five times under each server, and prints what was
lost. In `./just test`, `test_synced_confirms.py` shows why nothing is.
"""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from solstice_common.broker import open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import QueueType
from tests.servers import rabbitmq_4
from tests.servers.loop_disk import LoopDisk
from tests.servers.nats_server import NatsServer
from tests.servers.rabbitmq import rabbitmq_here
from tests.servers.rabbitmq_node import RabbitMQNode
from tests.servers.redis_server import RedisServer
from tests.traffic import ROUTE, order

CUTS: Final = int(os.environ.get("POWER_CUTS", "0"))
PUBLISHERS: Final = 50
ENOUGH: Final = 1000
"""Confirmed messages before the power is cut."""
QUIET_SECONDS: Final = 3.0
"""After the last message that was left."""

AnyServer: TypeAlias = RedisServer | NatsServer | RabbitMQNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server, and whether it keeps what it confirmed."""

    make: Callable[[], AnyServer]
    queue_type: QueueType = QueueType.QUORUM
    is_durable: bool = True
    is_new: bool = True
    """Whether its queues were declared just before; else the kernel has written that since."""


def debian_rabbitmq() -> AnyServer:
    return RabbitMQNode(rabbitmq_here(), synced=True)


def newer_rabbitmq() -> AnyServer:
    return RabbitMQNode(rabbitmq_4.installation(), synced=True)


CASES: Final = {
    "redis": Case(make=lambda: RedisServer(synced=True)),
    "redis-everysec": Case(
        make=lambda: RedisServer({"appendfsync": "everysec"}, synced=True), is_durable=False
    ),
    "nats": Case(make=lambda: NatsServer(synced=True)),
    "nats-two-minutes": Case(make=lambda: NatsServer(sync_interval=None, synced=True), is_durable=False),
    "rabbitmq-quorum": Case(make=debian_rabbitmq, is_new=False),
    "rabbitmq-new-quorum": Case(make=debian_rabbitmq, is_durable=False),
    "rabbitmq-classic": Case(make=debian_rabbitmq, queue_type=QueueType.CLASSIC),
    "rabbitmq-4-quorum": Case(make=newer_rabbitmq, is_new=False),
    "rabbitmq-4-new-quorum": Case(make=newer_rabbitmq, is_durable=False),
    "rabbitmq-4-classic": Case(make=newer_rabbitmq, queue_type=QueueType.CLASSIC, is_durable=False),
}


def url_of(server: AnyServer) -> str:
    return server.amqp_url if isinstance(server, RabbitMQNode) else server.url


async def confirmed_before(
    cut: Callable[[], None], server: AnyServer, case: Case, disk: LoopDisk
) -> set[int]:
    """Publish from many tasks, cut the power, and return what was confirmed."""
    confirmed, numbers, enough = set[int](), itertools.count(), asyncio.Event()

    async def publish() -> None:
        while True:
            number = next(numbers)
            (outcome,) = await broker.publish([order(number)])
            if outcome.confirmed:
                confirmed.add(number)
            if len(confirmed) >= ENOUGH:
                enough.set()

    async with open_broker(url_of(server), name="test", confirm_timeout_seconds=5) as broker:
        await broker.ready(60)
        await broker.declare(ROUTE.topology(case.queue_type))
        if not case.is_new:
            await asyncio.to_thread(disk.sync)
        async with asyncio.TaskGroup() as tasks:
            publishing = [tasks.create_task(publish()) for _ in range(PUBLISHERS)]
            await enough.wait()
            await asyncio.to_thread(cut)
            for each in publishing:
                each.cancel()
    return confirmed


async def left_in(server: AnyServer, queue_type: QueueType) -> set[int]:
    """What the queue has, if it is still there."""
    left = set[int]()
    async with open_broker(url_of(server), name="test") as broker:
        await broker.ready(60)
        await broker.declare(ROUTE.topology(queue_type))
        async with broker.consume(ROUTE.queue, prefetch=200) as consumer:
            while True:
                try:
                    async with asyncio.timeout(QUIET_SECONDS):
                        batch = await consumer.batch()
                except (TimeoutError, BrokerUnavailable):
                    return left
                left.update(int(delivery.body) for delivery in batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])


# It needs root and loop devices, and a start of each server on a disk of its own for each cut.
@pytest.mark.skipif(not CUTS, reason="not asked for: POWER_CUTS=1 runs it")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.timeout(120 + 60 * CUTS)
async def test_what_a_durable_server_confirmed_is_there_after_a_power_cut(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    confirmed, lost = 0, list[int]()
    for cut in range(CUTS):
        directory = tmp_path / str(cut)
        directory.mkdir()
        with LoopDisk.mounted(directory) as disk:
            monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
            with case.make() as server:
                disk.sync()

                def power_cut(server: AnyServer = server, disk: LoopDisk = disk) -> None:
                    server.freeze()
                    disk.cut()

                promised = await confirmed_before(power_cut, server, case, disk)
                server.kill()
                disk.restore()
                server.start()
                left = await left_in(server, case.queue_type)
            confirmed += len(promised)
            lost.append(len(promised - left))
    print(f"\n{name}: {CUTS} power cuts, {confirmed} confirmed, lost {lost}")  # noqa: T201  the full run is read
    assert not case.is_durable or sum(lost) == 0
