"""The dead-letter queues of RabbitMQ, for people: reads, removals and returns over aio-pika.

RabbitMQ cannot show messages without delivering them: each is delivered and returned. A classic queue puts it
back in its place. So does a quorum queue, but before 4.3 it counts each return, and from 4.0 on it removes a
message that was returned more than 20 times. `docs/decisions/0047-reading-dead-letters.md` has the
measurements, and explains why we copy a queue before its counts are too high.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

import aio_pika

from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    Enough,
    Handle,
    Progress,
    See,
    never_enough,
    no_progress,
)
from solstice_common.broker.dead_letters.hashed_bodies import HashedBody, in_groups
from solstice_common.broker.protocol import Published, PublishStatus
from solstice_common.broker.rabbitmq.link_errors import TOO_LARGE
from solstice_common.broker.rabbitmq.management_api import QueueCounts, counts_in
from solstice_common.broker.rabbitmq.tools.dead_letter_messages import (
    dead_letter_of,
    message_of,
    unchanged_copy,
    why_unfit,
)
from solstice_common.broker.rabbitmq.tools.dead_letter_reader import DeadLetterReader, reading
from solstice_common.broker.rabbitmq.tools.spooled_messages import BegunMessage, NoRoom, Spool, Spooled
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection, tool_connection
from solstice_common.errors import BrokerUnavailable

RENEW_AT: Final = 5
"""Returns after which a quorum queue is copied.

Far below the limit of 20: killed readers and reads on the management page count, too.
"""

LEFT_SECONDS: Final = 3.0
COUNTS_LAG_SECONDS: Final = 11.0
"""The age that the numbers of the management API may have: quorum queues and it count every five seconds."""

CONNECT_SECONDS: Final = 1.0
"""A firewall before the management API must not hold up each look at an empty queue."""


class _Counts:
    """The numbers of the management API; none once it could not be reached."""

    def __init__(self, url: str, management_url: str) -> None:
        self._url = url
        self._management_url = management_url or None
        self._is_away = False

    async def of(self, queue: str) -> QueueCounts | None:
        if self._is_away:
            return None
        try:
            return await counts_in(
                self._url, queue, management_url=self._management_url, connect_seconds=CONNECT_SECONDS
            )
        except BrokerUnavailable:
            self._is_away = True
            return None


class RabbitMQDeadLetters:
    """See `dead_letter_queue.DeadLetterQueues`."""

    def __init__(self, connection: ToolConnection, url: str, counts: _Counts) -> None:
        self._connection = connection
        self._counts = counts
        self.url = url

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str, management_url: str = "") -> AsyncIterator[Self]:
        """Connect under the connection name `name`; BrokerUnavailable when that fails.

        The management API, by default on the broker's host, says how many messages other readers hold.
        """
        async with tool_connection(url, name) as (connection, shown):
            yield cls(connection, shown, _Counts(url, management_url))

    def queue(self, name: str) -> "RabbitMQDeadLetterQueue":
        """See `dead_letter_queue.DeadLetterQueues.queue`."""
        return RabbitMQDeadLetterQueue(self._connection, self.url, name, self._counts)


class RabbitMQDeadLetterQueue:
    """See `dead_letter_queue.DeadLetterQueue`."""

    def __init__(self, connection: ToolConnection, url: str, name: str, counts: _Counts) -> None:
        self._connection = connection
        self._url = url
        self._counts = counts
        self._idle_since: float | None = None
        """Since when other consumers have held nothing, as the management API says."""
        self.name = name

    async def count(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.count`."""
        async with self._reading() as reader:
            return await reader.ready()

    async def in_use(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.in_use`.

        Who got messages one by one is no consumer: the management API alone counts these, some seconds later.
        """
        async with self._reading() as reader:
            # A quorum queue counts a consumer that has just left, such as our own, a little longer.
            wait_until = time.monotonic() + LEFT_SECONDS
            ready, consumers = await reader.ready_and_consumers()
            while consumers and time.monotonic() < wait_until:
                await asyncio.sleep(LEFT_SECONDS / 30)
                ready, consumers = await reader.ready_and_consumers()
        counted = await self._counts.of(self.name)
        if not consumers:
            return unlisted(ready, counted)
        number = None if counted is None else counted.unacked
        if number != 0:
            self._idle_since = None
            return number
        self._idle_since = self._idle_since or time.monotonic()
        return 0 if time.monotonic() - self._idle_since > COUNTS_LAG_SECONDS else None

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        """See `dead_letter_queue.DeadLetterQueue.browse`."""
        browsed = _BrowsedQueue(self.name, limit, see, whole=whole)
        async with self._reading() as reader:
            await reader.hold(browsed)
        if browsed.is_renewal_due:
            await self._renewed()

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        """See `dead_letter_queue.DeadLetterQueue.take`."""
        try:
            removed = await self._take(handle, limit, enough)
            if removed is None:
                # Before anything is handled: killed meanwhile, we might return some once too often.
                await self._renewed()
                removed = await self._take(handle, limit, enough, however_often_returned=True)
        except NoRoom as error:
            # They were returned once more, and some may not even have been counted.
            await self.browse(0, _see_nothing)
            raise BrokerUnavailable(self._url, str(error)) from error
        return removed or 0

    async def _take(
        self, handle: Handle, limit: int, enough: Enough, *, however_often_returned: bool = False
    ) -> int | None:
        """Take from the queue as it is; None when it has to be copied first.

        Raises NoRoom.
        """
        removed = 0
        async with self._reading() as reader:
            with _HeldQueue() as spool:
                await reader.hold(spool)
                if spool.is_renewal_due and not however_often_returned:
                    return None
                for group in in_groups(spool.messages[:limit], lambda each: each.body_bytes):
                    dead_letters = {each.tag: self._spooled(spool, each) for each in group}
                    chosen = await handle(list(dead_letters.values()))
                    gone = [tag for tag, dead_letter in dead_letters.items() if dead_letter.id in chosen]
                    await reader.remove(gone)
                    removed += len(gone)
                    if enough():
                        break
        return removed

    async def purge(self, on_progress: Progress = no_progress) -> int:
        """See `dead_letter_queue.DeadLetterQueue.purge`."""
        async with self._reading() as reader:
            removed = await reader.purge()
        on_progress(removed)
        return removed

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """See `dead_letter_queue.DeadLetterQueue.put_back`."""
        messages = [message_of(dead_letter) for dead_letter in dead_letters]
        # aiormq would fail over such a message after it had counted it, and mix up the confirms of others.
        refused = [why_unfit(message) for message in messages]
        fit = [message for message, why in zip(messages, refused, strict=True) if not why]
        outcomes = iter(await self._published(fit))
        return [Published(PublishStatus.REJECTED, why) if why else next(outcomes) for why in refused]

    async def _published(self, messages: Sequence[aio_pika.Message]) -> list[Published]:
        async with self._reading() as reader:
            outcomes = await reader.publish(messages)
        lost = [at for at, each in enumerate(outcomes) if each.status is PublishStatus.UNKNOWN]
        if lost and len(lost) < len(messages) and TOO_LARGE.search(outcomes[lost[0]].detail):
            # A message above the broker's limit ended the channel of the others.
            again = await self._published([messages[at] for at in lost])
            for at, outcome in zip(lost, again, strict=True):
                outcomes[at] = outcome
        return outcomes

    def _reading(self) -> contextlib.AbstractAsyncContextManager[DeadLetterReader]:
        return reading(self._connection, self._url, self.name)

    async def _renewed(self) -> None:
        """Copy the whole queue, also when we are cancelled meanwhile.

        Each message is copied to the end, in order, and the originals are removed once the copies are confirmed.
        After a kill in between, copies remain beside their originals, with the same id. A cancelled call that
        left them there would let the queue grow with every further one.
        """
        renewing = asyncio.ensure_future(self._renew())
        renewing.add_done_callback(_note_as_read)
        try:
            await asyncio.shield(renewing)
        finally:
            await asyncio.wait([renewing])

    async def _renew(self) -> None:
        try:
            await self._copy_all()
        except NoRoom:
            # Returned a few times more, they would be lost.
            await self._copy_one_by_one()

    async def _copy_all(self) -> None:
        async with self._reading() as reader:
            with Spool(whole=True) as spool:
                await reader.hold(spool)
                # Those that came meanwhile, too: a length limit counts only messages that no consumer holds, so
                # that no copy pushes another message out.
                await reader.hold(spool)
                await _copy(reader, spool)

    async def _copy_one_by_one(self) -> None:
        """Copy with one message in memory.

        After a kill in between, the copied ones come last.
        """
        async with self._reading() as reader:
            for _ in range(await reader.ready() or 0):
                with Spool(whole=True, on_disk=False) as spool:
                    await reader.hold(spool, most=1)
                    if not await _copy(reader, spool):
                        break

    def _spooled(self, spool: Spool, message: Spooled) -> DeadLetter:
        header, body = spool.read(message)
        return dead_letter_of(self.name, header, body, message.large, redelivered=message.redelivered)


class _BrowsedQueue:
    """A queue whose messages are shown as they arrive.

    It notes whether the queue has to be copied.
    """

    def __init__(self, queue: str, limit: int, see: See, *, whole: bool) -> None:
        self.is_renewal_due = False
        self._queue = queue
        self._left = limit
        self._see = see
        self._whole = whole
        self._arrival: BegunMessage | None = None
        self._body = HashedBody(0)

    def begin(self, arrival: BegunMessage) -> None:
        self.is_renewal_due |= _was_often_returned(arrival)
        self._arrival = arrival
        self._body = HashedBody(arrival.header.body_size, whole=self._whole)

    def add(self, piece: bytes) -> None:
        if self._left > 0:
            self._body.add(piece)

    def end(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and self._left > 0:
            self._left -= 1
            body, large = self._body.read()
            self._see(
                dead_letter_of(self._queue, arrival.header, body, large, redelivered=arrival.redelivered)
            )


class _HeldQueue(Spool):
    """All messages of a queue; it notes whether the queue has to be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.is_renewal_due = False

    def begin(self, arrival: BegunMessage) -> None:
        self.is_renewal_due |= _was_often_returned(arrival)
        super().begin(arrival)


def _note_as_read(renewing: "asyncio.Future[None]") -> None:
    # Its caller may have been cancelled: asyncio would log an unretrieved error as a bug.
    if not renewing.cancelled():
        renewing.exception()


def unlisted(ready: int, counted: QueueCounts | None) -> int:
    """Return how many messages are held without a consumer, while `ready` ones wait. Pure.

    The numbers may be of a moment at which our own reader held all that waits; then those that wait now did not wait.
    """
    return counted.unacked if counted is not None and counted.ready == ready else 0


def _see_nothing(_dead_letter: DeadLetter) -> None:
    """Keep nothing."""


def _was_often_returned(arrival: BegunMessage) -> bool:
    """Whether a quorum queue has counted too many returns of the message."""
    count = arrival.header.read_header("x-delivery-count") if arrival.redelivered else None
    return isinstance(count, int) and count >= RENEW_AT


async def _copy(reader: DeadLetterReader, spool: Spool) -> bool:
    """Copy the messages of a spool, and remove the originals; return whether all are copied."""
    copied: list[int] = []
    for group in in_groups(spool.messages, lambda each: each.body_bytes):
        outcomes = await reader.publish([_spooled_copy(spool, each) for each in group])
        copied += [each.tag for each, outcome in zip(group, outcomes, strict=True) if outcome.confirmed]
        if not all(outcome.confirmed for outcome in outcomes):
            # The broker has ended the channel, and the error about the channel would not say why.
            if too_large := [each.detail for each in outcomes if "max_message_size" in each.detail]:
                raise BrokerUnavailable(reader.url, f"a dead letter cannot be copied: {too_large[0]}")
            break
    await reader.stop_consuming()  # or the copies would come to us
    await reader.remove(copied)
    return len(copied) == len(spool.messages)


def _spooled_copy(spool: Spool, message: Spooled) -> aio_pika.Message:
    header, body = spool.read(message)
    return unchanged_copy(header.read(), body)
