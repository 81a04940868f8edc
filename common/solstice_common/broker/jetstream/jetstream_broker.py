"""NATS JetStream as a broker, over one supervised connection.

NATS has neither exchanges nor bindings: a table on the server holds them (`jetstream_routes`), and the
publisher writes a message to the stream of each queue that is bound.

Source: docs.nats.io/nats-concepts/jetstream, docs.nats.io/reference/reference-protocols/nats_api_reference.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Self

import structlog
from nats.js.api import StreamInfo

from solstice_common.addresses.hosts import HostChoice
from solstice_common.broker.capabilities import Capabilities, Certainty, DelayedRetry, QueueMeasure
from solstice_common.broker.dropping import OnDropped
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.jetstream import jetstream_streams
from solstice_common.broker.jetstream.jetstream_consumer import JetStreamConsumer
from solstice_common.broker.jetstream.jetstream_durability import DurabilityProbe
from solstice_common.broker.jetstream.jetstream_names import stream_of
from solstice_common.broker.jetstream.jetstream_presence import held_by_consumers
from solstice_common.broker.jetstream.jetstream_publisher import JetStreamPublisher
from solstice_common.broker.jetstream.jetstream_routes import RoutingTable
from solstice_common.broker.jetstream.nats_address import NatsAddress, read_address
from solstice_common.broker.jetstream.nats_connection import (
    NatsConnection,
    NatsDenied,
    NatsLost,
    open_connection_at,
)
from solstice_common.broker.jetstream.nats_records import HEADER_BYTES, NatsRecord, record_of
from solstice_common.broker.links.background import background
from solstice_common.broker.links.declared_topologies import DECLARE_WAIT_SECONDS, DeclaredTopologies
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import (
    BrokerHealth,
    Message,
    Published,
    QueueDepth,
)
from solstice_common.errors import TopologyMismatch
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

PROBE_SECONDS: Final = 60.0
"""Seconds between two requests to the server's monitoring port."""
DEFAULT_MAX_PAYLOAD: Final = 1 << 20
CAPABILITIES: Final = Capabilities(
    transport="nats",
    durable_on_confirm=Certainty.UNKNOWN,
    durable_when="`sync_interval: always` at the server, 2.10 or newer",
    # Three replicas keep a quorum, but nats-server issues 6888 and 7545 report losses.
    failover_safe=False,
    delayed_retry=DelayedRetry.NATIVE,
    priorities=Certainty.NO,
    max_message_bytes=DEFAULT_MAX_PAYLOAD - HEADER_BYTES,
    dedupe_window_seconds=jetstream_streams.DEDUPE_SECONDS,
    counts_interruptions=Certainty.YES,
    atomic_dead_letter=False,
    atomic_group=False,
    queue_measures=tuple(QueueMeasure),
    backpressure="a stream's `max_msgs` or `max_bytes`, the account's storage",
)

log = structlog.get_logger(__name__)


class JetStreamBroker:
    """See `protocol.Broker`."""

    def __init__(
        self,
        address: NatsAddress,
        *,
        name: str,
        confirm_timeout_seconds: float,
        ack_wait_seconds: float,
        on_dropped: OnDropped | None,
        probe: DurabilityProbe,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.ack_wait_seconds = ack_wait_seconds
        self.on_dropped = on_dropped
        self.table = RoutingTable()
        self._address = address
        self._probe = probe
        self._rng = rng
        self.declared = DeclaredTopologies(self._declare, log=log)
        self._link = SupervisedLink(
            partial(open_connection_at, address),
            hosts=HostChoice(address.hosts),
            shown_url=address.shown,
            name=name,
            prepare=self._prepare,
            rng=rng,
        )
        self._publisher = JetStreamPublisher(
            self._link, self, confirm_timeout_seconds=confirm_timeout_seconds
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        name: str,
        confirm_timeout_seconds: float = 30.0,
        ack_wait_seconds: float = jetstream_streams.ACK_WAIT_SECONDS,
        on_dropped: OnDropped | None = None,
        monitor_url: str = "",
        sync_always: bool = False,
        rng: random.Random | None = None,
    ) -> AsyncIterator[Self]:
        """Open a broker that connects in the background; leaving closes it within seconds.

        With `on_dropped`, poison messages are dropped, and their reasons are passed to it. `monitor_url` is
        the server's monitoring port; with `sync_always` the operator asserts that the server syncs always.
        Raises ConfigurationError for a wrong URL or certificates that cannot be read.
        """
        address = read_address(url)
        address.check()
        broker = cls(
            address,
            name=name,
            confirm_timeout_seconds=confirm_timeout_seconds,
            ack_wait_seconds=ack_wait_seconds,
            on_dropped=on_dropped,
            probe=DurabilityProbe(monitor_url, sync_always=sync_always),
            rng=rng or random.Random(),  # noqa: S311  jitter is no secret
        )
        async with (
            background({"broker-link": broker._link.run(), "broker-durability": broker._watch_durability()}),
            background({"broker-publisher": broker._publisher.run()}),
        ):
            yield broker

    @property
    def url(self) -> str:
        """The address without its password."""
        return self._address.shown

    @property
    def health(self) -> BrokerHealth:
        """See `protocol.Broker.health`."""
        connection = self._link.connection
        detail = self._link.detail if connection is None else self.declared.first_mismatch or ""
        return BrokerHealth(
            connected=connection is not None,
            degraded=None if connection is None else self._probe.degraded(connection.server_version),
            detail=detail,
            transport=CAPABILITIES.transport,
            host=self._link.host,
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `protocol.Broker.capabilities`."""
        connection = self._link.connection
        if connection is None:
            return CAPABILITIES
        return replace(
            CAPABILITIES,
            durable_on_confirm=self._probe.certainty(connection.server_version),
            max_message_bytes=connection.client.max_payload - HEADER_BYTES,
        )

    async def ready(self, timeout_seconds: float) -> None:
        """See `protocol.Broker.ready`."""
        await self._link.connected_within(timeout_seconds)

    async def declare(self, topology: Topology) -> None:
        """See `protocol.Broker.declare`; what was declared is declared again after every reconnect."""
        for queue in topology.queues:
            stream_of(queue.name)
        connection = await self._link.connected_within(DECLARE_WAIT_SECONDS)
        try:
            await self.declared.declare(connection, topology)
        except NatsLost as lost:
            raise lost.at(self.url) from lost

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """See `protocol.Broker.publish`."""
        return await self._publisher.publish([_record(message) for message in messages])

    async def publish_records(self, records: Sequence[NatsRecord]) -> Sequence[Published]:
        """Publish messages that have their own properties."""
        return await self._publisher.publish(records)

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[JetStreamConsumer]:
        """See `protocol.Broker.consume`."""
        stream_of(queue)
        consumer = JetStreamConsumer(self._link, self, queue, prefetch=prefetch, rng=self._rng)
        async with background({f"broker-consume-{queue}": consumer.run()}):
            yield consumer

    async def depth(self, queue: str) -> QueueDepth | None:
        """See `protocol.Broker.depth`."""
        connection = await self._link.connected_within(0)
        try:
            if await jetstream_streams.find_stream(connection, queue) is None:
                return None
            held = await held_by_consumers(connection, queue)
            stream = await jetstream_streams.find_stream(connection, queue)
            if stream is None:
                return None
            oldest = await self._oldest_seconds(connection, stream)
        except NatsLost as lost:
            raise lost.at(self.url) from lost
        pending = sum(each.count for each in held)
        return QueueDepth(
            ready=max(0, stream.state.messages - pending),
            consumers=len(held),
            pending=pending,
            oldest_seconds=oldest,
            lease_seconds=min(
                (each.lease_seconds for each in held if each.lease_seconds is not None), default=None
            ),
        )

    async def _oldest_seconds(self, connection: NatsConnection, stream: StreamInfo) -> float | None:
        """Return the age of the oldest message; None where this user may not read messages."""
        name = stream.config.name or ""
        if name in connection.unreadable:
            return None
        try:
            return await jetstream_streams.oldest_seconds(connection, stream)
        except NatsDenied:
            # Asked once for each connection: the server logs every refusal.
            connection.unreadable.add(name)
            return None

    async def reread(self, connection: NatsConnection) -> None:
        """Read the exchanges and bindings from the server. Raises NatsLost."""
        try:
            self.table = await jetstream_streams.read_routes(connection)
        except TopologyMismatch as mismatch:
            raise NatsLost(str(mismatch)) from None

    async def _declare(self, connection: NatsConnection, topology: Topology) -> None:
        self.table = await jetstream_streams.declare(
            connection,
            topology,
            ack_wait_seconds=self.ack_wait_seconds,
            replicas=self._address.replicas,
        )

    async def _prepare(self, connection: NatsConnection) -> None:
        """Prepare a new connection: JetStream must answer, and the topology is declared."""
        await jetstream_streams.require_jetstream(connection)
        await self.reread(connection)
        await self.declared.again(connection)

    async def _watch_durability(self) -> None:
        """Check every new connection, and then every minute; log once what the server lacks."""
        logged: str | None = None
        while True:
            connection = await self._link.connected()
            await self._probe.probe()
            degraded = self._probe.degraded(connection.server_version)
            if degraded is not None and degraded != logged:
                log.warning(LogEvent.BROKER_DEGRADED, url=self.url, detail=degraded)
            logged = degraded
            await asyncio.wait({connection.ended}, timeout=PROBE_SECONDS)


def _record(message: Message) -> NatsRecord:
    key = message.headers.get(IDEMPOTENCY_HEADER)
    return record_of(message, repeat_key=key if isinstance(key, str) else None, is_repeat=message.repeat)
