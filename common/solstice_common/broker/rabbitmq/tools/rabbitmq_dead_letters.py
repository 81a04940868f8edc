"""The dead-letter queues of RabbitMQ, for people: reads, removals and returns over aio-pika.

RabbitMQ cannot show messages without delivering them: each is delivered and returned. A classic queue puts it
back in its place. So does a quorum queue, but before 4.3 it counts each return, and from 4.0 on it removes a
message that was returned more than 20 times. `docs/decisions/0047-reading-dead-letters.md` has the
measurements, and explains why we copy a queue before its counts are too high.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import aio_pika

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter, Handle, plain
from solstice_common.broker.headers import BROKER_COUNTERS
from solstice_common.broker.protocol import Published
from solstice_common.broker.rabbitmq.received_properties import publishable
from solstice_common.broker.rabbitmq.tools.dead_letter_reader import DeadLetterReader, Received, reading
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection, tool_connection

GROUP: Final = 100
"""How many dead letters `take` passes on at once."""
RENEW_AT: Final = 5
"""Returns after which a quorum queue is copied.

Far below the limit of 20: killed readers and reads on the management page count, too.
"""


class RabbitMQDeadLetters:
    """See `dead_letter_queue.DeadLetterQueues`."""

    def __init__(self, connection: ToolConnection, url: str) -> None:
        self._connection = connection
        self.url = url

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str) -> AsyncIterator[Self]:
        """Connect under the connection name `name`; BrokerUnavailable when that fails."""
        async with tool_connection(url, name) as (connection, shown):
            yield cls(connection, shown)

    def queue(self, name: str) -> "RabbitMQDeadLetterQueue":
        """See `dead_letter_queue.DeadLetterQueues.queue`."""
        return RabbitMQDeadLetterQueue(self._connection, self.url, name)


class RabbitMQDeadLetterQueue:
    """See `dead_letter_queue.DeadLetterQueue`."""

    def __init__(self, connection: ToolConnection, url: str, name: str) -> None:
        self._connection = connection
        self._url = url
        self._name = name

    async def count(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.count`."""
        async with self._reading() as reader:
            return await reader.ready()

    async def browse(self, limit: int) -> Sequence[DeadLetter]:
        """See `dead_letter_queue.DeadLetterQueue.browse`."""
        async with self._reading() as reader:
            held = await reader.hold()
            await self._renew_if_due(reader, held)
            return [self._dead_letter(message) for message in held[:limit]]

    async def take(self, handle: Handle, limit: int) -> int:
        """See `dead_letter_queue.DeadLetterQueue.take`."""
        async with self._reading() as reader:
            # Before anything else: if we are killed while we hold these, some might be returned once too
            # often.
            await self._renew_if_due(reader, await reader.hold())
        removed = 0
        async with self._reading() as reader:
            held = (await reader.hold())[:limit]
            for start in range(0, len(held), GROUP):
                group = [(self._dead_letter(each), each) for each in held[start : start + GROUP]]
                chosen = await handle([dead_letter for dead_letter, _ in group])
                gone = [each for dead_letter, each in group if dead_letter.id in chosen]
                await reader.remove(gone)
                removed += len(gone)
        return removed

    async def purge(self) -> int:
        """See `dead_letter_queue.DeadLetterQueue.purge`."""
        async with self._reading() as reader:
            return await reader.purge()

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """See `dead_letter_queue.DeadLetterQueue.put_back`."""
        async with self._reading() as reader:
            return await reader.publish([_message(dead_letter) for dead_letter in dead_letters])

    def _reading(self) -> contextlib.AbstractAsyncContextManager[DeadLetterReader]:
        return reading(self._connection, self._url, self._name)

    async def _renew_if_due(self, reader: DeadLetterReader, held: Sequence[Received]) -> None:
        """Copy the whole queue when a message was returned often already.

        Each message is copied to the end, in order, and the original removed once its copy is confirmed.
        After a kill in between, copies remain beside their originals, with the same id.
        """
        if not any(map(_often_returned, held)):
            return
        # All messages are held at once: a length limit counts only messages that no consumer holds, so that
        # no copy pushes another message out.
        held = [*held, *await reader.hold()]
        outcomes = await reader.publish([unchanged_copy(message) for message in held])
        await reader.remove(
            [message for message, outcome in zip(held, outcomes, strict=True) if outcome.confirmed]
        )

    def _dead_letter(self, message: Received) -> DeadLetter:
        headers = {str(name): plain(value) for name, value in message.headers.items()}
        if not message.redelivered:
            # A publisher may have set it; the broker counts only returned messages.
            headers = {name: value for name, value in headers.items() if name not in BROKER_COUNTERS}
        return DeadLetter(
            queue=self._name,
            body=message.body,
            headers=headers,
            type=message.type,
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            priority=message.priority,
            timestamp=message.timestamp,
            content_type=message.content_type,
            app_id=message.app_id,
        )


def _often_returned(message: Received) -> bool:
    """Whether a quorum queue has counted too many returns of the message."""
    count = message.headers.get("x-delivery-count")
    return bool(message.redelivered) and isinstance(count, int) and count >= RENEW_AT


def unchanged_copy(message: Received) -> aio_pika.Message:
    """The same message, without counters, time to live and user, who may be another."""
    return aio_pika.Message(
        message.body,
        headers=_publishable({k: v for k, v in message.headers.items() if k not in BROKER_COUNTERS}),
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=message.priority,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        message_id=message.message_id,
        timestamp=message.timestamp,
        type=message.type,
        app_id=message.app_id,
    )


def _message(dead_letter: DeadLetter) -> aio_pika.Message:
    return aio_pika.Message(
        dead_letter.body,
        headers=_publishable({k: v for k, v in dead_letter.headers.items() if k not in BROKER_COUNTERS}),
        content_type=dead_letter.content_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=dead_letter.priority,
        correlation_id=dead_letter.correlation_id,
        message_id=dead_letter.message_id,
        timestamp=dead_letter.timestamp,
        type=dead_letter.type,
        app_id=dead_letter.app_id,
    )


def _publishable(headers: dict[str, Any]) -> dict[str, Any]:
    carried = {name: publishable(value) for name, value in headers.items()}
    return {name: value for name, value in carried.items() if value is not None}
