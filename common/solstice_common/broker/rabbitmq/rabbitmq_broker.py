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
from solstice_common.broker.rabbitmq.wire import Wire, open_wire_at
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

CAPABILITIES: Final = Capabilities(
    transport="rabbitmq",
    durable_on_confirm=Certainty.YES,
    durable_when="with quorum queues, half a minute after they were declared; before RabbitMQ 4 with classic ones, too",
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

UNSYNCED_CLASSIC_SINCE: Final = 4
"""The major version whose classic queues (version 2 of their index) confirm what was written, without an fsync."""
UNSYNCED: Final = (
    "not durable, RabbitMQ 4 confirms messages of classic queues before it syncs them; "
    "set AMQP_QUEUE_TYPE=quorum (solstice topology migrate)"
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
        self._server_major = 0
        self._logged: str | None = None
        """Of what it has warned."""
        self._publishing, self._consuming = (
            SupervisedLink(
                partial(open_wire_at, address),
                hosts=hosts,
                shown_url=self._url,
                name=f"{name} ({purpose})",
                prepare=self._prepare,
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
            degraded=self._degraded,
            detail=trouble or "",
            transport=CAPABILITIES.transport,
            host=self._consuming.host,
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `protocol.Broker.capabilities`. A classic queue lives on one node alone."""
        durable = Certainty.YES if self._degraded is None else Certainty.NO
        return replace(CAPABILITIES, failover_safe=self._has_quorum_queues, durable_on_confirm=durable)

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
        self._warn()

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

    @property
    def _has_quorum_queues(self) -> bool:
        return all(queue.arguments.get("x-queue-type") == "quorum" for queue in self.declared.queues())

    @property
    def _degraded(self) -> str | None:
        is_durable = self._server_major < UNSYNCED_CLASSIC_SINCE or self._has_quorum_queues
        return None if is_durable else UNSYNCED

    async def _prepare(self, wire: Wire) -> None:
        self._server_major = wire.server_major
        await self.declared.again(wire)
        self._warn()

    def _warn(self) -> None:
        """Log once why a confirm is no promise."""
        before, self._logged = self._logged, self._degraded
        if self._logged and self._logged != before:
            log.warning(LogEvent.BROKER_DEGRADED, url=self._url, detail=self._logged)


def _envelope(message: Message) -> Envelope:
    return Envelope(
        exchange=message.exchange,
        routing_key=message.routing_key,
        body=message.body,
        properties=of_message(message),
    )
