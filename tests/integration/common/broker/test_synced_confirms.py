"""A power cut loses nothing that a durable broker confirmed: it synced each message before.

The order of the calls of real servers shows it: the message written, its file synced, the confirm received.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from solstice_common.broker import open_broker
from solstice_common.broker.capabilities import Certainty
from solstice_common.topology import QueueType
from tests.brokers import EMBEDDED, broker_url, pytest_generate_tests
from tests.servers.nats_server import NatsServer
from tests.servers.rabbitmq import RabbitMQServer, shared_rabbitmq
from tests.servers.rabbitmq_node import PlacedRabbitMQ
from tests.servers.redis_server import RedisServer
from tests.servers.traced_calls import is_synced, read_calls, traced_calls
from tests.servers.versions import nats_flavours, redis_flavours
from tests.traffic import ROUTE, order

__all__ = ["broker_url", "pytest_generate_tests"]

EVERY_VERSION = True
COUNT: Final = 20
"""Messages one by one; a sync each second or two minutes cannot come before the confirm of each."""


@pytest.fixture(scope="module")
def rabbitmq_servers() -> Iterator[Callable[[str], RabbitMQServer]]:
    """Servers of this module alone.

    A process is traced once at a time, and other tests would have it sync.
    """
    with ExitStack() as stack:
        yield cache(lambda flavour: stack.enter_context(shared_rabbitmq(flavour)))


@pytest.fixture
def broker_process(
    broker_kind: str,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_servers: Callable[[str], RedisServer],
    nats_servers: Callable[[str], NatsServer],
) -> tuple[int, str]:
    """The process that writes the messages, and the monitoring port of NATS."""
    if broker_kind == EMBEDDED:
        return os.getpid(), ""
    if broker_kind in redis_flavours()[0]:
        return redis_servers(broker_kind).pid, ""
    if broker_kind in nats_flavours()[0]:
        nats_server = nats_servers(broker_kind)
        return nats_server.pid, nats_server.monitor_url
    node = rabbitmq_servers(broker_kind)
    if not isinstance(node, PlacedRabbitMQ):
        # It is the one of SOLSTICE_TEST_AMQP_URL: strace cannot follow what runs elsewhere.
        pytest.skip("not asked for: this RabbitMQ is no process of the tests")
    return node.pid, ""


async def syncs(
    url: str, pid: int, folder: Path, *, queue_type: QueueType = QueueType.QUORUM, monitor_url: str = ""
) -> tuple[Certainty, list[bool]]:
    """What the broker declares, and whether it synced each message before its confirm."""
    async with open_broker(url, name="test", nats_monitor_url=monitor_url) as broker:
        await broker.ready(60)
        await broker.declare(ROUTE.topology(queue_type))
        confirmed: dict[str, float] = {}
        with traced_calls(pid, folder) as trace:
            for number in range(COUNT):
                marker = f"message {number} of the trace"
                (outcome,) = await broker.publish([replace(order(number), body=marker.encode())])
                assert outcome.confirmed, outcome
                confirmed[marker] = time.time()
        calls = read_calls(trace.read_text(errors="replace").splitlines())
        return broker.capabilities.durable_on_confirm, [
            is_synced(calls, marker, before=at) for marker, at in confirmed.items()
        ]


async def test_each_message_is_synced_before_its_confirm_exactly_where_that_is_declared(
    broker_url: str, broker_process: tuple[int, str], queue_type: QueueType, tmp_path: Path
) -> None:
    pid, monitor_url = broker_process
    durable, synced = await syncs(broker_url, pid, tmp_path, queue_type=queue_type, monitor_url=monitor_url)
    assert durable in {Certainty.YES, Certainty.NO}
    assert all(synced) == (durable is Certainty.YES), synced


async def test_redis_that_syncs_each_second_says_so_and_confirms_before(tmp_path: Path) -> None:
    with RedisServer({"appendfsync": "everysec"}) as server:
        durable, synced = await syncs(server.url, server.pid, tmp_path)
    assert durable is Certainty.NO
    assert not all(synced)


async def test_nats_that_syncs_every_two_minutes_says_so_and_confirms_before(tmp_path: Path) -> None:
    with NatsServer(sync_interval=None) as server:
        durable, synced = await syncs(server.url, server.pid, tmp_path, monitor_url=server.monitor_url)
    assert durable is Certainty.NO
    assert not all(synced)
