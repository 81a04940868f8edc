"""A dead-letter queue loses nothing where temporary files have no room."""

import random
import resource
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from solstice_common.broker import DeadLetter, Message, open_dead_letter_queues
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.broker.rabbitmq.tools.dead_letter_reader import reading
from solstice_common.broker.rabbitmq.tools.rabbitmq_dead_letters import RENEW_AT
from solstice_common.broker.rabbitmq.tools.spooled_messages import SPOOLED_BYTES, NoRoom, Spool
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection, tool_connection
from solstice_common.errors import BrokerUnavailable
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from tests.brokers import EMBEDDED, broker_url, pytest_generate_tests
from tests.browsing import browse
from tests.servers.versions import NATS, REDIS
from tests.traffic import connected, wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]
WITHOUT_BROKERS: Final = (EMBEDDED, NATS, REDIS)
JOBS: Final = jobs_route(BrokerSettings())
COUNT: Final = 3
TOO_MANY: Final = SPOOLED_BYTES // HELD_BODY_BYTES + 2


@pytest.fixture
def small_disk(broker_url: str) -> Iterator[None]:
    """Limit the size of files: a full disk fails a write alike."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPOOLED_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def with_dead_letters(broker_url: str, bodies: Sequence[bytes]) -> AsyncIterator[None]:
    """A broker whose queue of dead letters has these, published one by one."""
    async with connected(broker_url, topology=full_topology(BrokerSettings())) as broker:
        for body in bodies:
            await broker.publish(
                [Message(exchange=JOBS.dlx, routing_key=JOBS.routing_key, body=body, type="x")]
            )
        await wait_for_ready(broker, JOBS.dlq, len(bodies))
        yield


@pytest.mark.usefixtures("small_disk")
async def test_many_looks_without_room_for_copies_lose_nothing(broker_url: str) -> None:
    bodies = [random.Random(number).randbytes(SPOOLED_BYTES // 2) for number in range(COUNT)]
    async with (
        with_dead_letters(broker_url, bodies),
        open_dead_letter_queues(broker_url, name="test") as queues,
    ):
        dead = queues.queue(JOBS.dlq)
        for _ in range(RENEW_AT + 4):
            found = await browse(dead, COUNT, whole=True)
            assert [each.body for each in found] == bodies
            counted = max(each.headers.get("x-delivery-count", 0) for each in found)
            assert counted <= RENEW_AT + 1, "none comes near the limit at which the broker drops it"


@pytest.mark.usefixtures("small_disk")
async def test_many_takes_without_room_lose_nothing(broker_url: str) -> None:
    bodies = [random.Random(number).randbytes(HELD_BODY_BYTES) for number in range(TOO_MANY)]

    async def handle(_: Sequence[DeadLetter]) -> Collection[str]:
        raise AssertionError("there was no room for them")

    async with (
        with_dead_letters(broker_url, bodies),
        open_dead_letter_queues(broker_url, name="test") as queues,
    ):
        dead = queues.queue(JOBS.dlq)
        for _ in range(RENEW_AT + 4):
            with pytest.raises(BrokerUnavailable, match="make room"):
                await dead.take(handle, TOO_MANY)
        found = await browse(dead, TOO_MANY, whole=True)
        assert sorted(each.body for each in found) == sorted(bodies)
        counted = max(each.headers.get("x-delivery-count", 0) for each in found)
        assert counted <= RENEW_AT + 2, "none comes near the limit at which the broker drops it"


@pytest.mark.usefixtures("small_disk")
async def test_what_finds_no_room_is_back_before_the_failure_is_known(broker_url: str) -> None:
    bodies = [random.Random(number).randbytes(SPOOLED_BYTES // 2) for number in range(COUNT)]
    bodies += [bytes(1024)] * 1000
    async with connected(broker_url, topology=full_topology(BrokerSettings())) as broker:
        for start in range(0, len(bodies), COUNT):
            await broker.publish(
                [
                    Message(exchange=JOBS.dlx, routing_key=JOBS.routing_key, body=body, type="x")
                    for body in bodies[start : start + COUNT]
                ]
            )
        await wait_for_ready(broker, JOBS.dlq, len(bodies))
        async with tool_connection(broker_url, "test") as (connection, url):
            for _ in range(4):
                with pytest.raises(NoRoom):
                    await _hold_all(connection, url)
                async with reading(connection, url, JOBS.dlq) as reader:
                    assert await reader.ready() == len(bodies), "only a part of a shorter queue is copied"


async def _hold_all(connection: ToolConnection, url: str) -> None:
    async with reading(connection, url, JOBS.dlq) as reader:
        with Spool(whole=True) as spool:
            await reader.hold(spool)
