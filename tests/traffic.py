"""Publishes and consumes numbered messages for tests of a broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from solstice_common.broker import Broker, Delivery, Message, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.broker.protocol import Consumer
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import QueueType, Route, Topology
from tests.polling import wait_until

ROUTE = Route(exchange="orders", queue="orders.v1", routing_key="order.v1", dlx="dead", dlq="dead.v1")
TOPOLOGY = ROUTE.topology(QueueType.QUORUM)
WAIT_SECONDS = 60


def order(number: int, *, exchange: str = ROUTE.exchange, routing_key: str = ROUTE.routing_key) -> Message:
    return Message(
        exchange=exchange,
        routing_key=routing_key,
        body=str(number).encode(),
        type="order.v1",
        correlation_id=f"order-{number}",
    )


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


@asynccontextmanager
async def connected(
    url: str, *, topology: Topology = TOPOLOGY, confirm_timeout_seconds: float = 20.0
) -> AsyncIterator[Broker]:
    """A broker that is connected and has declared `topology`."""
    async with open_broker(url, name="test", confirm_timeout_seconds=confirm_timeout_seconds) as broker:
        await broker.ready(WAIT_SECONDS)
        await broker.declare(topology)
        yield broker


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    """The next `count` deliveries, not settled; more than that fails the test."""
    received: list[Delivery] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(received) < count:
            received.extend(await consumer.batch())
    assert len(received) == count
    return received


async def drain(broker: Broker, queue: str, count: int) -> list[Delivery]:
    """Take `count` messages off `queue`."""
    async with broker.consume(queue, prefetch=count) as consumer:
        received = await take(consumer, count)
        await consumer.settle([(delivery, Ack()) for delivery in received])
        return received


async def wait_for_ready(broker: Broker, queue: str, expected: int) -> None:
    """Wait until `queue` has so many messages ready."""
    async with asyncio.timeout(WAIT_SECONDS):
        while await _ready(broker, queue) != expected:  # noqa: ASYNC110  asks a server
            await asyncio.sleep(0.02)


async def _ready(broker: Broker, queue: str) -> int | None:
    # A connection that was not used since its server was killed shows that only now.
    with contextlib.suppress(BrokerUnavailable):
        depth = await broker.depth(queue)
        return depth.ready if depth else None
    return None


class Traffic:
    """Publishes numbers and consumes them until stopped.

    It remembers which were confirmed and which were seen.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next = 0
        self._stop = asyncio.Event()
        self.confirmed: set[int] = set()
        self.seen: set[int] = set()
        self.outcomes: dict[str, int] = {}

    @asynccontextmanager
    async def flowing(self, *, publishers: int = 8, prefetch: int = 64) -> AsyncIterator[None]:
        """Traffic during the body; leaving waits until every confirmed message was seen."""
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(self._consume(prefetch), name="traffic-consume")
            publishing = [
                group.create_task(self._publish(), name=f"traffic-publish-{each}")
                for each in range(publishers)
            ]
            yield
            self._stop.set()
            await asyncio.wait(publishing)
            await wait_until(lambda: self.confirmed <= self.seen)
            consuming.cancel()

    async def progress(self, count: int = 50) -> None:
        """Wait until so many more messages were confirmed, and as many seen."""
        confirmed, seen = len(self.confirmed) + count, len(self.seen) + count
        await wait_until(lambda: len(self.confirmed) >= confirmed and len(self.seen) >= seen)

    async def _publish(self) -> None:
        while not self._stop.is_set():
            own_numbers = range(self._next, self._next + 5)
            self._next += 5
            for number, outcome in zip(
                own_numbers, await self._broker.publish([order(n) for n in own_numbers]), strict=True
            ):
                self.outcomes[outcome.status] = self.outcomes.get(outcome.status, 0) + 1
                if outcome.confirmed:
                    self.confirmed.add(number)
            await asyncio.sleep(0.002)

    async def _consume(self, prefetch: int) -> None:
        async with self._broker.consume(ROUTE.queue, prefetch=prefetch) as consumer:
            while True:
                batch = await consumer.batch()
                self.seen.update(int(delivery.body) for delivery in batch)
                await consumer.settle([(delivery, Ack()) for delivery in batch])
