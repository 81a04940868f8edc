"""RabbitMQ as a broker, over two supervised connections.

One publishes, the other consumes and declares.

They are two because RabbitMQ stops reading from a connection that publishes while it is short of memory or disk: acks
on the same connection would not arrive either, nor would the answer to a declaration.

Source: rabbitmq.com/docs/alarms, rabbitmq.com/docs/confirms, rabbitmq.com/docs/consumer-cancel.
"""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import structlog
from yarl import URL

from solstice_common.broker.protocol import BrokerHealth, Message, Published, QueueDepth
from solstice_common.broker.rabbitmq import declare as topology_declaration
from solstice_common.broker.rabbitmq.consumer import RabbitMQConsumer
from solstice_common.broker.rabbitmq.link import Link, background
from solstice_common.broker.rabbitmq.properties import of_message
from solstice_common.broker.rabbitmq.publisher import Envelope, Publisher
from solstice_common.broker.rabbitmq.wire import LinkLost, Wire
from solstice_common.errors import BrokerUnavailable, ConfigurationError, TopologyMismatch
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

DECLARE_WAIT_SECONDS = 10.0

log = structlog.get_logger(__name__)


class RabbitMQBroker:
    """See `protocol.Broker`."""

    def __init__(self, url: str, *, name: str, confirm_timeout_seconds: float, rng: random.Random) -> None:
        self.name = name
        # Without options: a certificate's password may be among them.
        self._url = str(_checked(url).with_password(None).with_query(None))
        self._rng = rng
        self._topologies: list[Topology] = []
        self._mismatches: dict[str, TopologyMismatch] = {}
        self._publishing = Link(
            url, shown_url=self._url, name=f"{name} (publish)", prepare=self.redeclare, rng=rng
        )
        self._consuming = Link(
            url, shown_url=self._url, name=f"{name} (consume)", prepare=self.redeclare, rng=rng
        )
        self._publisher = Publisher(self._publishing, confirm_timeout_seconds=confirm_timeout_seconds)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, name: str, confirm_timeout_seconds: float = 30.0, rng: random.Random | None = None
    ) -> AsyncIterator[Self]:
        """A broker that connects in the background. Leaving closes both connections within a few seconds."""
        chance = rng or random.Random()  # noqa: S311  jitter is no secret
        broker = cls(url, name=name, confirm_timeout_seconds=confirm_timeout_seconds, rng=chance)
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
        publishing = self._publishing.wire
        down = [link for link in (self._publishing, self._consuming) if link.wire is None]
        trouble = [link.detail for link in down] or [str(each) for each in self._mismatches.values()]
        return BrokerHealth(
            connected=not down,
            blocked=None if publishing is None else publishing.blocked,
            detail=trouble[0] if trouble else "",
        )

    async def ready(self, timeout_seconds: float) -> None:
        """See `protocol.Broker.ready`."""
        deadline = time.monotonic() + timeout_seconds
        await self._consuming.connected_within(timeout_seconds)
        await self._publishing.connected_within(max(0.0, deadline - time.monotonic()))

    async def declare(self, topology: Topology) -> None:
        """See `protocol.Broker.declare`; what was declared is declared again after every reconnect."""
        wire = await self._consuming.connected_within(DECLARE_WAIT_SECONDS)
        try:
            await topology_declaration.declare(wire, topology)
        except LinkLost as lost:
            raise BrokerUnavailable(self._url, str(lost)) from lost
        if topology not in self._topologies:
            self._topologies.append(topology)
        for queue in topology.queues:
            self._mismatches.pop(queue.name, None)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """See `protocol.Broker.publish`."""
        return await self._publisher.publish([_envelope(message) for message in messages])

    async def publish_envelopes(self, envelopes: Sequence[Envelope]) -> Sequence[Published]:
        """The same, for messages that bring properties of their own."""
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
            raise BrokerUnavailable(self._url, str(lost)) from lost

    def dead_letter_exchange(self, queue: str) -> str | None:
        """The exchange for refused messages of `queue`, as declared."""
        for topology in self._topologies:
            for declared in topology.queues:
                if declared.name == queue:
                    return declared.dead_letter_exchange
        return None

    def mismatch(self, queue: str) -> TopologyMismatch | None:
        """Why `queue` differs, since the last reconnect, from its declaration."""
        return self._mismatches.get(queue)

    async def redeclare(self, wire: Wire) -> None:
        """Declare everything again: a broker may have returned empty.

        An object that has changed stops only its own consumer; LinkLost when the broker does not answer.
        """
        mismatches: dict[str, TopologyMismatch] = {}
        for topology in self._topologies:
            try:
                await topology_declaration.declare(wire, topology)
            except TopologyMismatch as mismatch:
                mismatches[mismatch.name] = mismatch
                log.error(  # noqa: TRY400  the trace tells nothing that its fields do not
                    LogEvent.BROKER_MISMATCHED,
                    kind=mismatch.kind,
                    name=mismatch.name,
                    detail=mismatch.theirs,
                )
        self._mismatches = mismatches


def _checked(url: str) -> URL:
    try:
        address = URL(url)
    except ValueError:
        # yarl's message may hold a part of the password.
        raise ConfigurationError(
            "AMQP_URL: cannot be taken apart; in user and password write # [ ] @ / ? and % as %23 %5B %5D %40 %2F %3F and %25"
        ) from None
    if address.scheme not in {"amqp", "amqps"} or not address.host:
        raise ConfigurationError("AMQP_URL: must look like amqp://user:password@host:5672/%2f")
    return address


def _envelope(message: Message) -> Envelope:
    return Envelope(
        exchange=message.exchange,
        routing_key=message.routing_key,
        body=message.body,
        properties=of_message(message),
    )
