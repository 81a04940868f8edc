"""RabbitMQ as a broker, over two supervised connections.

One publishes, the other consumes and declares.

There are two, because RabbitMQ stops reading from a publishing connection while it lacks memory or disk: acks
on the same connection would not arrive either, nor would the answer to a declaration.

Source: rabbitmq.com/docs/alarms, rabbitmq.com/docs/confirms, rabbitmq.com/docs/consumer-cancel.
"""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Self

import structlog

from solstice_common.addresses.hosts import HostChoice
from solstice_common.broker.capabilities import Capabilities, Certainty, DelayedRetry
from solstice_common.broker.links.background import background
from solstice_common.broker.links.declared_topologies import DECLARE_WAIT_SECONDS, DeclaredTopologies
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import BrokerHealth, Message, Published, QueueDepth
from solstice_common.broker.rabbitmq import declare as topology_declaration
from solstice_common.broker.rabbitmq.consumer import RabbitMQConsumer
from solstice_common.broker.rabbitmq.link_errors import LinkLost
from solstice_common.broker.rabbitmq.properties import of_message
from solstice_common.broker.rabbitmq.publisher import Envelope, Publisher
from solstice_common.broker.rabbitmq.rabbitmq_address import rabbitmq_address
from solstice_common.broker.rabbitmq.wire import open_wire_at
from solstice_common.topology import Topology

CAPABILITIES: Final = Capabilities(
    transport="rabbitmq",
    durable_on_confirm=Certainty.YES,
    durable_when="always",
    failover_safe=True,
    delayed_retry=DelayedRetry.HELD,
    # Quorum queues deliver priorities above 4 first, from 4.0.
    priorities=Certainty.UNKNOWN,
    # The default `max_message_size` of 4.0; older servers take more.
    max_message_bytes=16 << 20,
    dedupe_window_seconds=0.0,
    # Which returns raise x-delivery-count changed with 4.0 and again with 4.3.
    counts_interruptions=Certainty.UNKNOWN,
    atomic_dead_letter=False,
    atomic_group=False,
    queue_measures=(),
    backpressure="alarms of memory and disk; a queue's length limit",
)

log = structlog.get_logger(__name__)


class RabbitMQBroker:
    """See `protocol.Broker`."""

    def __init__(self, url: str, *, name: str, confirm_timeout_seconds: float, rng: random.Random) -> None:
        self.name = name
        address = rabbitmq_address(url)
        address.check()
        self._url = address.shown
        hosts = HostChoice(address.hosts)
        self._rng = rng
        self.declared = DeclaredTopologies(topology_declaration.declare, log=log)
        self._publishing, self._consuming = (
            SupervisedLink(
                partial(open_wire_at, address),
                hosts=hosts,
                shown_url=self._url,
                name=f"{name} ({purpose})",
                prepare=self.declared.again,
                rng=rng,
            )
            for purpose in ("publish", "consume")
        )
        self._publisher = Publisher(self._publishing, confirm_timeout_seconds=confirm_timeout_seconds)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, name: str, confirm_timeout_seconds: float = 30.0, rng: random.Random | None = None
    ) -> AsyncIterator[Self]:
        """Open a broker that connects in the background; leaving closes it within seconds."""
        rng = rng or random.Random()  # noqa: S311  jitter is no secret
        broker = cls(url, name=name, confirm_timeout_seconds=confirm_timeout_seconds, rng=rng)
        links = {
            "broker-publish-link": broker._publishing.run(),
            "broker-consume-link": broker._consuming.run(),
        }
        async with background(links), background({"broker-publisher": broker._publisher.run()}):
            yield broker

    @property
    def url(self) -> str:
        """The address without its password."""
        return self._url

    @property
    def health(self) -> BrokerHealth:
        """See `protocol.Broker.health`."""
        publishing = self._publishing.connection
        down = [link for link in (self._publishing, self._consuming) if link.connection is None]
        trouble = down[0].detail if down else self.declared.first_mismatch
        return BrokerHealth(
            connected=not down,
            blocked=None if publishing is None else publishing.blocked,
            detail=trouble or "",
            transport=CAPABILITIES.transport,
            host=self._consuming.host,
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `protocol.Broker.capabilities`. A classic queue lives on one node alone."""
        quorum = all(queue.arguments.get("x-queue-type") == "quorum" for queue in self.declared.queues())
        return replace(CAPABILITIES, failover_safe=quorum)

    async def ready(self, timeout_seconds: float) -> None:
        """See `protocol.Broker.ready`."""
        deadline = time.monotonic() + timeout_seconds
        await self._consuming.connected_within(timeout_seconds)
        await self._publishing.connected_within(max(0.0, deadline - time.monotonic()))

    async def declare(self, topology: Topology) -> None:
        """See `protocol.Broker.declare`; what was declared is declared again after every reconnect."""
        wire = await self._consuming.connected_within(DECLARE_WAIT_SECONDS)
        try:
            await self.declared.declare(wire, topology)
        except LinkLost as lost:
            raise lost.at(self._url) from lost

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """See `protocol.Broker.publish`."""
        return await self._publisher.publish([_envelope(message) for message in messages])

    async def publish_envelopes(self, envelopes: Sequence[Envelope]) -> Sequence[Published]:
        """Publish messages that have their own properties."""
        return await self._publisher.publish(envelopes)

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[RabbitMQConsumer]:
        """See `protocol.Broker.consume`."""
        consumer = RabbitMQConsumer(self._consuming, self, queue, prefetch=prefetch, rng=self._rng)
        async with background({f"broker-consume-{queue}": consumer.run()}):
            yield consumer

    async def depth(self, queue: str) -> QueueDepth | None:
        """See `protocol.Broker.depth`."""
        wire = await self._consuming.connected_within(0)
        try:
            return await topology_declaration.depth(wire, queue)
        except LinkLost as lost:
            raise lost.at(self._url) from lost


def _envelope(message: Message) -> Envelope:
    return Envelope(
        exchange=message.exchange,
        routing_key=message.routing_key,
        body=message.body,
        properties=of_message(message),
    )
