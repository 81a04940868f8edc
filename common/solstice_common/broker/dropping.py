"""Drops refused messages where an operator wants no dead letters, and counts them."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Verdict
from solstice_common.broker.headers import REASON_HEADER
from solstice_common.broker.protocol import (
    CONFIRMED,
    Broker,
    Consumer,
    Delivery,
    Message,
    Published,
)
from solstice_common.broker.wrapped_broker import WrappedBroker
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

OnDropped = Callable[[str], None]
"""Called with the reason of each message that was dropped instead of becoming a dead letter."""

log = structlog.get_logger(__name__)


def drop(on_dropped: OnDropped, queue: str, request_id: str | None, reason: str) -> None:
    """Log and count a message that is dropped in place of becoming a dead letter."""
    log.warning(LogEvent.DEAD_LETTER_DROPPED, queue=queue, request_id=request_id, reason=reason)
    on_dropped(reason)


class DroppingBroker(WrappedBroker):
    """A broker without dead letters.

    A message that would become one is acked, or not published; it is logged and counted.
    """

    def __init__(self, broker: Broker, on_dropped: OnDropped) -> None:
        super().__init__(broker)
        self._on_dropped = on_dropped
        self._dead_letter_exchanges: set[str] = set()

    async def declare(self, topology: Topology) -> None:
        """Declare all of it: other processes may keep dead letters."""
        exchanges = {queue.dead_letter_exchange for queue in topology.queues}
        self._dead_letter_exchanges |= {name for name in exchanges if name is not None}
        await self._broker.declare(topology)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """Publish all but dead letters, which count as confirmed."""
        dropped = [message.exchange in self._dead_letter_exchanges for message in messages]
        for message, is_dropped in zip(messages, dropped, strict=True):
            if is_dropped:
                reason = str(message.headers.get(REASON_HEADER, "unknown"))
                drop(self._on_dropped, message.exchange, message.correlation_id, reason)
        remaining = [message for message, is_dropped in zip(messages, dropped, strict=True) if not is_dropped]
        outcomes = iter(await self._broker.publish(remaining) if remaining else ())
        return [CONFIRMED if is_dropped else next(outcomes) for is_dropped in dropped]

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator["DroppingConsumer"]:
        async with self._broker.consume(queue, prefetch=prefetch) as consumer:
            yield DroppingConsumer(consumer, queue, self._on_dropped)


class DroppingConsumer:
    """A consumer whose refused messages are acked."""

    def __init__(self, consumer: Consumer, queue: str, on_dropped: OnDropped) -> None:
        self._consumer = consumer
        self._queue = queue
        self._on_dropped = on_dropped

    @property
    def subscribed(self) -> bool:
        return self._consumer.subscribed

    async def batch(self) -> Sequence[Delivery]:
        return await self._consumer.batch()

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        settled: list[tuple[Delivery, Verdict]] = []
        for delivery, verdict in verdicts:
            if isinstance(verdict, Refuse):
                drop(self._on_dropped, self._queue, delivery.correlation_id, verdict.reason)
                settled.append((delivery, Ack()))
            else:
                settled.append((delivery, verdict))
        await self._consumer.settle(settled)
