"""One `basic.consume` on one channel: its deliveries, and their acks."""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp import commands as spec

from solstice_common.broker.links.resubscribing import QueueMissing
from solstice_common.broker.rabbitmq.acks import AckAction, AckLedger, encode
from solstice_common.broker.rabbitmq.declare import close_channel
from solstice_common.broker.rabbitmq.frames import UnreadHeader
from solstice_common.broker.rabbitmq.link_errors import TO_READ, LinkLost, link_errors, lost_link
from solstice_common.broker.rabbitmq.wire import RPC_SECONDS, Wire, WireChannel

PARTING_SECONDS: Final = 3.0


class Subscription:
    """The deliveries of one queue until the channel ends.

    It is the user of that channel.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self.ready: deque[ReceivedDelivery] = deque()
        """Deliveries that arrived and that `batch` has not returned yet, oldest first."""
        self.started = False
        """The broker delivers: it has answered `basic.consume`."""
        self.over = False
        """The channel is lost: the broker delivers unsettled messages again."""
        self._arrived = arrived
        self._ledger = AckLedger()
        self._decided: dict[int, AckAction] = {}
        self._due = asyncio.Event()
        self._written = asyncio.Event()
        self._cancelled = asyncio.Event()

    async def run(self, wire: Wire, queue: str, *, prefetch: int) -> None:
        """Consume until the channel ends.

        Raises LinkLost at that end, and QueueMissing when the queue does not exist.

        When it is cancelled, it returns unsettled deliveries to the queue.
        """
        channel = await wire.open_channel(self)
        # A fresh one each time: RabbitMQ 4.3 answers the reuse of a cancelled tag by closing the connection.
        consumer_tag = f"solstice-{uuid.uuid4().hex}"
        try:
            await self._consume(channel, queue, consumer_tag, prefetch)
            self.started = True
            await self._until_it_ends(channel)
        except asyncio.CancelledError:
            await self._part(channel, consumer_tag)
            raise
        finally:
            self._end()
            await close_channel(channel)

    async def settle(self, decisions: Mapping[int, AckAction]) -> None:
        """Return when the decisions are written.

        One write has all decisions of this iteration of the event loop.
        """
        if self.over or not decisions:
            return
        self._decided.update(decisions)
        self._due.set()
        await self._written.wait()

    def settle_soon(self, decisions: Mapping[int, AckAction]) -> None:
        """Settle, without waiting for the write."""
        self._decided.update(decisions)
        self._due.set()

    def delivered(self, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes) -> None:
        arrival = ReceivedDelivery(self, frame, header, body)
        self._ledger.delivered(arrival.tag)
        self.ready.append(arrival)
        self._arrived()

    def returned(self, frame: spec.Basic.Return, header: UnreadHeader) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, frame: spec.Basic.Ack | spec.Basic.Nack) -> None:
        """Nothing is published on this channel."""

    async def _consume(self, channel: WireChannel, queue: str, consumer_tag: str, prefetch: int) -> None:
        channel.calls.on_consumer_cancel_callbacks.add(lambda _: self._cancelled.set())
        with link_errors(TO_READ):
            await channel.calls.basic_qos(prefetch_count=prefetch, timeout=RPC_SECONDS)
            try:
                await channel.calls.basic_consume(
                    queue, _never_called, consumer_tag=consumer_tag, timeout=RPC_SECONDS
                )
            except ChannelNotFoundEntity:
                raise QueueMissing(queue) from None

    async def _until_it_ends(self, channel: WireChannel) -> None:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(channel), name="broker-settle")
            cancelled = group.create_task(self._cancelled.wait(), name="broker-cancelled")
            ends: set[asyncio.Future[Any]] = {channel.ended, cancelled}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            writing.cancel()
            cancelled.cancel()
        if channel.ended.done():
            raise lost_link(channel.ended.result(), TO_READ)
        raise LinkLost("the broker cancelled the consumer")

    async def _write(self, channel: WireChannel) -> None:
        while not channel.ended.done():
            await self._due.wait()
            await self._write_decided(channel)

    async def _write_decided(self, channel: WireChannel) -> None:
        self._due.clear()
        decided, self._decided = self._decided, {}
        written, self._written = self._written, asyncio.Event()
        try:
            frames = self._ledger.settle(decided)
            if frames:
                await channel.write(encode(frames, channel.number))
        except LinkLost:
            return
        finally:
            written.set()

    async def _part(self, channel: WireChannel, consumer_tag: str) -> None:
        """Stop new deliveries, write the decisions, and return the remaining deliveries."""
        try:
            with link_errors():
                async with asyncio.timeout(PARTING_SECONDS):
                    await channel.calls.basic_cancel(consumer_tag)
                    await self._write_decided(channel)
                    rest = self._ledger.give_back()
                    if rest is not None:
                        await channel.write(encode([rest], channel.number))
        except LinkLost:
            # Then the broker takes them back by itself.
            return

    def _end(self) -> None:
        self.over = True
        self.ready.clear()
        self._decided.clear()
        self._written.set()


class ReceivedDelivery:
    """A Delivery of RabbitMQ, whose properties are read on demand."""

    __slots__ = (
        "_claimed",
        "_frame",
        "_header",
        "_headers",
        "_last",
        "_properties",
        "body",
        "omitted_bytes",
        "subscription",
        "tag",
    )

    def __init__(
        self, subscription: Subscription, frame: spec.Basic.Deliver, header: UnreadHeader, body: bytes
    ) -> None:
        self.subscription = subscription
        self.tag = frame.delivery_tag or 0
        self.body = body
        self.omitted_bytes = header.body_size if header.body_size > len(body) else 0
        self._frame = frame
        self._header = header
        self._properties: spec.Basic.Properties | None = None
        self._headers: Mapping[str, object] | None = None
        self._last: tuple[str, object] = "", None
        """The header that was read alone, by its name."""
        self._claimed = False

    def claim(self) -> bool:
        """Whether this is the first verdict on the delivery; only that one counts."""
        first, self._claimed = not self._claimed, True
        return first

    @property
    def properties(self) -> spec.Basic.Properties:
        """All properties, as in AMQP."""
        if self._properties is None:
            self._properties = self._header.read()
        return self._properties

    @property
    def redelivered(self) -> bool:
        return bool(self._frame.redelivered)

    @property
    def exchange(self) -> str:
        return self._frame.exchange or ""

    @property
    def routing_key(self) -> str:
        return self._frame.routing_key or ""

    @property
    def type(self) -> str | None:
        return self.properties.message_type

    @property
    def correlation_id(self) -> str | None:
        return self.properties.correlation_id

    @property
    def message_id(self) -> str | None:
        return self.properties.message_id

    @property
    def headers(self) -> Mapping[str, object]:
        if self._headers is None:
            self._headers = self._header.read_headers()
        return self._headers

    def header(self, name: str) -> object:
        if self._last[0] != name:
            self._last = name, self._header.read_header(name)
        return self._last[1]


async def _never_called(message: DeliveredMessage) -> None:
    """Deliveries do not go through aiormq."""
