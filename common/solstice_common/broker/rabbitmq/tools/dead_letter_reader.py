"""Reads one dead-letter queue of RabbitMQ on one channel, over aio-pika."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError
from pamqp import commands as spec

from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus
from solstice_common.broker.rabbitmq.link_errors import (
    TO_PUBLISH,
    TO_READ,
    TOO_LARGE,
    AccessRefused,
    LinkLost,
    link_errors,
)
from solstice_common.broker.rabbitmq.tools.spooled_messages import DeliveryHandler, NoRoom
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection, reported
from solstice_common.broker.rabbitmq.wire import CLOSE_SECONDS, RPC_SECONDS
from solstice_common.errors import BrokerUnavailable, DeadLettersInUse

ARRIVAL_SECONDS: Final = 3.0
"""Another reader of the queue holds a dead letter of which nothing has arrived by then."""
CONFIRM_SECONDS: Final = 30.0
RETURN_POLLS: Final = 100
RETURN_POLL_SECONDS: Final = 0.02
IN_FLIGHT: Final = 200
ACKS_AT_ONCE: Final = 16
MAX_PREFETCH: Final = 65_535
UNLIMITED: Final = 0
UNCOUNTED_SINCE: Final = (4, 3)
CANCEL_SECONDS: Final = 60.0
"""The broker's answer comes behind all messages that it has sent: after an error, many may be on their way."""


class DeadLetterReader:
    """A reader that holds, removes and returns the messages of `queue`; opened by `reading`."""

    def __init__(self, connection: ToolConnection, channel: AbstractChannel, url: str, queue: str) -> None:
        self._connection = connection
        self._channel = channel
        self.url = url
        self._queue = queue
        self._held: set[int] = set()
        """The delivery tags of messages that are not settled."""
        self._unread = 0
        """At most so many more were delivered, and not read after an error of the receiver."""
        self._consumers: list[tuple[AbstractQueue, str]] = []
        """What shows other readers that messages are held here: AMQP counts consumers alone."""

    async def ready(self) -> int | None:
        """Return how many messages wait; None ends this channel: there is no such queue."""
        found = await self._found()
        return None if found is None else found.message_count or 0

    async def ready_and_consumers(self) -> tuple[int, int]:
        """Return how many messages wait, and how many consumers there are; no queue has neither."""
        found = await self._found()
        return (0, 0) if found is None else (found.message_count or 0, found.consumer_count or 0)

    async def _found(self) -> spec.Queue.DeclareOk | None:
        with reported(self.url):
            try:
                found = await self._channel.declare_queue(self._queue, passive=True, timeout=RPC_SECONDS)
            except ChannelNotFoundEntity:
                return None
        return found.declaration_result

    async def hold(self, receiver: DeliveryHandler, *, most: int | None = None) -> None:
        """Have every waiting message delivered to `receiver`, in the queue's order; hold all until settled.

        With `most`, only so many. One consumer must hold all of them: a quorum queue puts returned messages behind those that were
        returned before. It stays on the queue, full, until `stop_consuming`. Raises the error of `receiver`.
        """
        count = await self.ready()
        if not count:
            return
        count = min(count, most or count)
        with reported(self.url):
            number = (await self._channel.get_underlay_channel()).number
        with self._connection.receiving(number, receiver) as arrivals, reported(self.url, TO_READ):
            await self._channel.set_qos(
                prefetch_count=count if count <= MAX_PREFETCH else UNLIMITED, timeout=RPC_SECONDS
            )
            queue = await self._channel.get_queue(self._queue, ensure=False)
            tag = await queue.consume(_never_called, timeout=RPC_SECONDS)
            # A large one may still be arriving.
            while not await arrivals.wait(count, ARRIVAL_SECONDS) and (
                arrivals.error is None and self._connection.silent_seconds < ARRIVAL_SECONDS
            ):
                pass
            self._consumers.append((queue, tag))
            if most is not None or arrivals.error is not None:
                await self.stop_consuming()
        self._held.update(arrivals.tags)
        if arrivals.error is not None:
            self._unread = count - len(arrivals.tags)
            raise arrivals.error
        if not arrivals.tags:
            # The queue is not empty: a list without entries would hide its dead letters.
            raise DeadLettersInUse(self._queue, None)

    async def stop_consuming(self) -> None:
        """Have nothing more delivered, and hold what has been."""
        consumers, self._consumers = self._consumers, []
        with reported(self.url):
            for queue, tag in consumers:
                await queue.cancel(tag, timeout=CANCEL_SECONDS)

    async def remove(self, tags: Collection[int]) -> None:
        """Remove held messages; return when the broker has processed that.

        A quorum queue's channel sets acks aside when more than 32 are pending, and forgets those when it
        ends: the messages would come back. So one ack removes the first held messages, and others are removed
        in small groups.
        """
        first = list(itertools.takewhile(set(tags).__contains__, sorted(self._held)))
        others = sorted(set(tags).difference(first))
        with reported(self.url):
            channel = await self._channel.get_underlay_channel()
            if first:
                await channel.basic_ack(first[-1], multiple=True)
        for start in range(0, len(others), ACKS_AT_ONCE):
            with reported(self.url):
                for tag in others[start : start + ACKS_AT_ONCE]:
                    await channel.basic_ack(tag)
            await self.ready()
        self._held.difference_update(tags)
        await self.ready()

    async def give_back(self) -> None:
        """Return held messages to their places, and end this channel.

        It waits, because a quorum queue returns them slowly: the next reader would find later messages first.
        """
        if not self._held and not self._unread:
            return
        # Of what was not read, some may not even have been delivered.
        expected = len(self._held) + max(self._unread, await self.ready() or 0)
        with reported(self.url):
            if _nack_is_uncounted(self._connection):
                await self.stop_consuming()
                channel = await self._channel.get_underlay_channel()
                for tag in sorted(self._held):
                    await channel.basic_nack(tag, requeue=True)
            # Else the channel's end returns them: before 4.0, a quorum queue puts nacked messages behind all
            # others.
            await self._channel.close()
            another = await self._connection.channel()
        counting = DeadLetterReader(self._connection, another, self.url, self._queue)
        for _ in range(RETURN_POLLS):  # not without a limit: another reader may have taken some already
            if (await counting.ready() or 0) >= expected:
                break
            await asyncio.sleep(RETURN_POLL_SECONDS)
        with reported(self.url):
            await another.close()

    async def purge(self) -> int:
        with reported(self.url, TO_READ):
            try:
                queue = await self._channel.get_queue(self._queue, ensure=False)
                return (await queue.purge(timeout=RPC_SECONDS)).message_count or 0
            except ChannelNotFoundEntity:
                return 0

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        """Publish to the queue's end, in order; the outcome of each."""
        outcomes: list[Published] = []
        for start in range(0, len(messages), IN_FLIGHT):
            group = messages[start : start + IN_FLIGHT]
            outcomes += await asyncio.gather(*(self._publish_one(message) for message in group))
        return outcomes

    async def _publish_one(self, message: Message) -> Published:
        try:
            with link_errors(TO_PUBLISH):
                try:
                    await self._channel.default_exchange.publish(
                        message, routing_key=self._queue, mandatory=True, timeout=CONFIRM_SECONDS
                    )
                except PublishError:
                    return Published(PublishStatus.UNROUTABLE, f"there is no queue {self._queue!r}")
                except DeliveryError as refused:
                    return Published(PublishStatus.REJECTED, str(refused))
        except AccessRefused as refused:
            raise refused.at(self.url) from refused
        except LinkLost as lost:
            limit = TOO_LARGE.search(str(lost))
            if limit is None or len(message.body) <= int(limit[1]):
                return Published(PublishStatus.UNKNOWN, str(lost))
            size = f"its body has {len(message.body)} bytes, and RabbitMQ takes {limit[1]}"
            return Published(PublishStatus.REJECTED, f"{size}: raise max_message_size in its rabbitmq.conf")
        return CONFIRMED


@asynccontextmanager
async def reading(connection: ToolConnection, url: str, queue: str) -> AsyncIterator[DeadLetterReader]:
    """Open a channel to read with; leaving returns the remaining messages to the queue.

    So does NoRoom.
    """
    with reported(url):
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    reader = DeadLetterReader(connection, channel, url, queue)
    try:
        try:
            yield reader
        except NoRoom:
            await reader.give_back()
            raise
        await reader.give_back()
    finally:
        with contextlib.suppress(BrokerUnavailable), reported(url):
            async with asyncio.timeout(CLOSE_SECONDS):
                await channel.close()


def _nack_is_uncounted(connection: AbstractConnection) -> bool:
    """Whether the broker counts the end of a channel, but no nack (RabbitMQ 4.3).

    Source: rabbitmq.com/docs/quorum-queues (delivery limits).
    """
    transport = connection.transport
    properties = {} if transport is None else transport.connection.server_properties
    version = re.match(r"(\d+)\.(\d+)", str(properties.get("version", "")))
    return version is not None and (int(version[1]), int(version[2])) >= UNCOUNTED_SINCE


async def _never_called(message: AbstractIncomingMessage) -> None:
    """Deliveries do not go through aio-pika."""
