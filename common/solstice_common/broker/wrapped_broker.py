"""Passes a broker's calls on, for those that change some of them."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from solstice_common.broker.capabilities import Capabilities
from solstice_common.broker.protocol import Broker, BrokerHealth, Consumer, Message, Published, QueueDepth
from solstice_common.topology import Topology


class WrappedBroker:
    """A Broker that does what another does; subclasses override what differs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def url(self) -> str:
        return self._broker.url

    @property
    def health(self) -> BrokerHealth:
        return self._broker.health

    @property
    def capabilities(self) -> Capabilities:
        return self._broker.capabilities

    async def ready(self, timeout_seconds: float) -> None:
        await self._broker.ready(timeout_seconds)

    async def declare(self, topology: Topology) -> None:
        await self._broker.declare(topology)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        return await self._broker.publish(messages)

    def consume(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Consumer]:
        return self._broker.consume(queue, prefetch=prefetch)

    async def depth(self, queue: str) -> QueueDepth | None:
        return await self._broker.depth(queue)
