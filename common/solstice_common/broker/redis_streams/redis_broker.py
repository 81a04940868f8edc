"""Redis or Valkey as a broker, over two supervised connections and one for each consumer.

One publishes, the other settles, declares and reads: a large publish must not delay the settling of
deliveries.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Self

import msgspec
import structlog
from redis.exceptions import ResponseError

from solstice_common.addresses.hosts import HostChoice
from solstice_common.broker.capabilities import Capabilities, Certainty, DelayedRetry, QueueMeasure
from solstice_common.broker.dropping import OnDropped
from solstice_common.broker.links.background import background
from solstice_common.broker.links.declared_topologies import DECLARE_WAIT_SECONDS, DeclaredTopologies
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import BrokerHealth, Message, Published, QueueDepth
from solstice_common.broker.redis_streams.redis_consumer import LEAVE_SECONDS, RedisConsumer
from solstice_common.broker.redis_streams.redis_durability import SETTINGS_READ, Durability, judged, unusable
from solstice_common.broker.redis_streams.redis_publisher import RedisPublisher
from solstice_common.broker.redis_streams.redis_queue_scripts import DECLARE, DEPTH
from solstice_common.broker.redis_streams.redis_replies import info, pairs
from solstice_common.broker.redis_streams.redis_scripts import DEDUPE_SECONDS
from solstice_common.broker.redis_streams.redis_url import RedisAddress, redis_address
from solstice_common.broker.redis_streams.redis_wire import (
    RedisDenied,
    RedisLost,
    RedisRefusal,
    RedisWire,
    open_redis_wire_at,
)
from solstice_common.broker.redis_streams.stream_entries import MAX_BODY_BYTES
from solstice_common.errors import BrokerUnavailable, ConfigurationError, TopologyMismatch
from solstice_common.runtime.pausing import pause
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Queue, Topology

CHECK_SECONDS: Final = 60.0
"""Seconds between checks of the server's settings, which an operator may change at any time."""
RECHECK_SECONDS: Final = 2.0
"""Seconds between checks while it is blocked, and after it rejected a message."""
CAPABILITIES: Final = Capabilities(
    transport="redis",
    durable_on_confirm=Certainty.UNKNOWN,
    durable_when="appendonly yes, appendfsync always",
    # Replication is asynchronous; min-replicas-to-write narrows the gap and does not close it.
    failover_safe=False,
    delayed_retry=DelayedRetry.HELD,
    priorities=Certainty.NO,
    max_message_bytes=MAX_BODY_BYTES,
    dedupe_window_seconds=DEDUPE_SECONDS,
    counts_interruptions=Certainty.NO,
    atomic_dead_letter=True,
    atomic_group=True,
    queue_measures=tuple(QueueMeasure),
    backpressure="maxmemory with noeviction; a queue's x-max-length",
)

log = structlog.get_logger(__name__)


class RedisBroker:
    """See `protocol.Broker`."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        name: str,
        confirm_timeout_seconds: float,
        rng: random.Random,
        on_dropped: OnDropped | None = None,
    ) -> None:
        self.name = name
        self.on_dropped = on_dropped
        self._address = address
        self._rng = rng
        self.declared = DeclaredTopologies(self._declare, log=log)
        self._durability = Durability(durable=Certainty.UNKNOWN)
        self._check_soon = asyncio.Event()
        self._hosts = HostChoice(address.hosts)
        self._publishing = self._link("publish", self._check)
        self.control = self._link("control", self._prepare)
        self._publisher = RedisPublisher(
            self._publishing,
            prefix=address.prefix,
            confirm_timeout_seconds=confirm_timeout_seconds,
            refusal=self._refusal,
            on_rejected=self._rejected,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        name: str,
        confirm_timeout_seconds: float = 30.0,
        rng: random.Random | None = None,
        on_dropped: OnDropped | None = None,
    ) -> AsyncIterator[Self]:
        """Open a broker that connects in the background; leaving closes it within seconds."""
        rng = rng or random.Random()  # noqa: S311  jitter is no secret
        address = redis_address(url)
        address.check()
        broker = cls(
            address,
            name=name,
            confirm_timeout_seconds=confirm_timeout_seconds,
            rng=rng,
            on_dropped=on_dropped,
        )
        links = {
            "broker-publish-link": broker._publishing.run(),
            "broker-control-link": broker.control.run(),
        }
        works = {"broker-publisher": broker._publisher.run(), "broker-durability": broker._keep_checking()}
        async with background(links), background(works):
            yield broker

    @property
    def url(self) -> str:
        """The address without its password."""
        return self._address.shown

    @property
    def health(self) -> BrokerHealth:
        """See `protocol.Broker.health`."""
        down = [link for link in (self._publishing, self.control) if link.connection is None]
        trouble = down[0].detail if down else self.declared.first_mismatch
        return BrokerHealth(
            connected=not down,
            blocked=self._durability.blocked,
            degraded=self._durability.degraded,
            detail=trouble or "",
            transport=CAPABILITIES.transport,
            host=self.control.host,
        )

    @property
    def capabilities(self) -> Capabilities:
        """See `protocol.Broker.capabilities`."""
        return replace(CAPABILITIES, durable_on_confirm=self._durability.durable)

    async def ready(self, timeout_seconds: float) -> None:
        """See `protocol.Broker.ready`."""
        deadline = time.monotonic() + timeout_seconds
        await self.control.connected_within(timeout_seconds)
        await self._publishing.connected_within(max(0.0, deadline - time.monotonic()))

    async def declare(self, topology: Topology) -> None:
        """See `protocol.Broker.declare`; what was declared is declared again after every reconnect."""
        wire = await self.control.connected_within(DECLARE_WAIT_SECONDS)
        try:
            await self.declared.declare(wire, topology)
        except (RedisLost, RedisDenied) as lost:
            raise lost.at(self.url) from lost

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """See `protocol.Broker.publish`."""
        return await self._publisher.publish(messages)

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[RedisConsumer]:
        """See `protocol.Broker.consume`."""
        link = self._link("consume", _as_it_is)
        consumer = RedisConsumer(link, self, self._address, queue, prefetch=prefetch, rng=self._rng)
        async with background({f"broker-link-{queue}": link.run()}):
            reading = asyncio.create_task(consumer.run(), name=f"broker-consume-{queue}")
            reading.add_done_callback(_log_crash)
            try:
                yield consumer
            finally:
                # A task of its own: the leaving task may be cancelled again meanwhile.
                leaving = asyncio.create_task(_leave(consumer, reading), name=f"broker-leave-{queue}")
                await asyncio.shield(leaving)

    async def depth(self, queue: str) -> QueueDepth | None:
        """See `protocol.Broker.depth`."""
        wire = await self.control.connected_within(0)
        try:
            found = await wire.call(
                DEPTH, self._address.prefix, queue, str(int(self._address.lease_seconds * 1000))
            )
        except (RedisLost, RedisDenied) as lost:
            raise lost.at(self.url) from lost
        except RedisRefusal as refused:
            raise BrokerUnavailable(self.url, str(refused)) from refused
        if not found:
            return None
        ready, pending, consumers, oldest_ms, lease_ms = found
        return QueueDepth(
            ready=ready,
            consumers=consumers,
            pending=pending,
            oldest_seconds=None if oldest_ms < 0 else oldest_ms / 1000,
            lease_seconds=None if lease_ms < 0 else lease_ms / 1000,
        )

    def _link(
        self, purpose: str, prepare: Callable[[RedisWire], Awaitable[None]]
    ) -> SupervisedLink[RedisWire]:
        return SupervisedLink(
            partial(open_redis_wire_at, self._address),
            hosts=self._hosts,
            shown_url=self._address.shown,
            name=f"{self.name} ({purpose})",
            prepare=prepare,
            rng=self._rng,
        )

    async def _declare(self, wire: RedisWire, topology: Topology) -> None:
        exchanges = [part for each in topology.exchanges for part in (each.name, each.kind)]
        queues = [part for each in topology.queues for part in (each.name, _arguments(each))]
        bindings = [
            part for each in topology.bindings for part in (each.exchange, each.queue, each.routing_key)
        ]
        counts = [str(len(rows)) for rows in (topology.exchanges, topology.queues, topology.bindings)]
        try:
            differs = await wire.call(DECLARE, self._address.prefix, *counts, *exchanges, *queues, *bindings)
        except RedisDenied:
            raise
        except RedisRefusal as refused:
            raise RedisLost(str(refused)) from None
        if not differs:
            return
        kind, name, found = (part.decode() for part in differs)
        match kind:
            case "exchange":
                declared = next(each for each in topology.exchanges if each.name == name)
                raise TopologyMismatch("exchange", name, {"type": declared.kind}, f"type={found!r}")
            case "queue":
                on_broker = ", ".join(f"{key}={value!r}" for key, value in sorted(json.loads(found).items()))
                raise TopologyMismatch(
                    "queue", name, topology.queue(name).arguments, on_broker or "no arguments"
                )
            case _:
                raise ConfigurationError(
                    f"the queue {found!r} cannot be bound to the exchange {name!r}: one of them does not exist"
                )

    async def _prepare(self, wire: RedisWire) -> None:
        await self._check(wire)
        await self.declared.again(wire)

    async def _check(self, wire: RedisWire) -> None:
        """Note the server's durability; RedisLost when it can never be our broker."""
        facts = await _info(wire)
        if why := unusable(facts):
            raise RedisLost(why)
        self._note(judged(await _config(wire), facts))

    async def _keep_checking(self) -> None:
        while True:
            await pause(CHECK_SECONDS, unless=self._check_soon)
            # Not at once, even after a rejection: a full server rejects in a tight loop.
            await asyncio.sleep(RECHECK_SECONDS)
            self._check_soon.clear()
            wire = await self.control.connected()
            try:
                await self._check(wire)
            except (RedisLost, RedisDenied) as lost:
                wire.end(str(lost))

    def _note(self, durability: Durability) -> None:
        before, self._durability = self._durability, durability
        if durability.degraded and durability.degraded != before.degraded:
            log.warning(LogEvent.BROKER_DEGRADED, url=self.url, detail=durability.degraded)
        if durability.blocked:
            self._check_soon.set()
        if durability.blocked and durability.blocked != before.blocked:
            log.warning(LogEvent.BROKER_BLOCKED, url=self.url, detail=durability.blocked)

    def _rejected(self, why: str) -> None:
        """Check soon whether there is room again; until then a full server counts as blocked.

        INFO alone does not show it: the rejected message's memory was freed again.
        """
        self._check_soon.set()
        if why.startswith("OOM"):
            self._note(msgspec.structs.replace(self._durability, blocked=f"out of memory: {why}"))

    def _refusal(self) -> str | None:
        blocked = self._durability.blocked
        return blocked if blocked is not None and blocked.startswith("refused") else None


async def _as_it_is(wire: RedisWire) -> None:
    """Do nothing: a connection that reads needs no preparation."""


async def _leave(consumer: RedisConsumer, reading: "asyncio.Task[None]") -> None:
    """Have the consumer return its entries, within a few seconds."""
    await consumer.leave()
    await asyncio.wait([reading], timeout=LEAVE_SECONDS)
    reading.cancel()
    await asyncio.wait([reading])
    consumer.close()


async def _info(wire: RedisWire) -> Mapping[str, str]:
    try:
        return info(await wire.command("INFO"))
    except ResponseError:
        return {}  # only the answers of commands show the state


async def _config(wire: RedisWire) -> Mapping[str, str] | None:
    """Return the settings that decide the durability; None where CONFIG is not allowed."""
    settings: dict[str, str] = {}
    for name in SETTINGS_READ:
        try:
            settings.update(pairs(await wire.command("CONFIG", "GET", name)))
        except (ResponseError, RedisDenied):
            return None
    return settings


def _arguments(queue: Queue) -> str:
    """Return the arguments in one form.

    As on RabbitMQ, naming the default type is the same as naming none.
    """
    stored_arguments = {
        key: value for key, value in queue.arguments.items() if (key, value) != ("x-queue-type", "classic")
    }
    return json.dumps(stored_arguments, sort_keys=True)


def _log_crash(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error(LogEvent.TASK_CRASHED, task=task.get_name(), exc_info=error)
