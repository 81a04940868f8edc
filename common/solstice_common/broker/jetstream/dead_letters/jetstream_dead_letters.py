"""The dead-letter queues of NATS JetStream, for people.

We read and remove messages by their sequence, without the durable consumer, so that reading changes no
counter. A reader that holds messages answers the others for them (`jetstream_presence`): the messages of a
killed reader are free at once.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Final, Self

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import APIError

from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    Enough,
    Handle,
    Progress,
    See,
    never_enough,
    no_progress,
    take_all,
)
from solstice_common.broker.dead_letters.hashed_bodies import in_groups
from solstice_common.broker.dead_letters.meta_records import meta_of_dead_letter
from solstice_common.broker.jetstream.dead_letters.stream_messages import (
    WINDOW,
    NumberedDeadLetter,
    StreamMessages,
)
from solstice_common.broker.jetstream.jetstream_names import stream_of
from solstice_common.broker.jetstream.jetstream_presence import answer_presence, held_by_consumers
from solstice_common.broker.jetstream.jetstream_publisher import read_answer, too_large
from solstice_common.broker.jetstream.jetstream_streams import find_stream, require_jetstream
from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.broker.jetstream.nats_connection import (
    NatsConnection,
    NatsLost,
    described,
    open_connection,
)
from solstice_common.broker.jetstream.nats_records import META_HEADER, header_bytes, without_known
from solstice_common.broker.protocol import Published, PublishStatus
from solstice_common.errors import BrokerUnavailable

ANSWER_SECONDS: Final = 10.0


class JetStreamDeadLetters:
    """See `dead_letter_queue.DeadLetterQueues`."""

    def __init__(self, connection: NatsConnection, url: str) -> None:
        self._connection = connection
        self.url = url

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str) -> AsyncIterator[Self]:
        """Connect under the connection name `name`; BrokerUnavailable when that fails."""
        address = read_address(url)
        async with AsyncExitStack() as stack:
            with _reported(address.shown):
                # Not a link, which reconnects: a command reports a lost connection, and the next one
                # continues.
                connection = await stack.enter_async_context(open_connection(address, name))
                await require_jetstream(connection)
            yield cls(connection, address.shown)

    def queue(self, name: str) -> "JetStreamDeadLetterQueue":
        """See `dead_letter_queue.DeadLetterQueues.queue`."""
        return JetStreamDeadLetterQueue(self._connection, self.url, name)


class _Hold:
    """The sequences that one `take` holds; it answers the other readers for them."""

    def __init__(self, connection: NatsConnection, queue: str) -> None:
        self.sequences: set[int] = set()
        self._connection = connection
        self._queue = queue
        self._reader = uuid.uuid4().hex
        self._presence: Subscription | None = None

    async def announce(self) -> None:
        """Start to answer other readers. Raises NatsLost."""
        self._presence = await answer_presence(
            self._connection, self._queue, lambda: self.sequences, reader=self._reader
        )

    async def let_go(self) -> None:
        """Release everything that it holds."""
        self.sequences.clear()
        if self._presence is not None:
            with suppress(nats.errors.Error):
                await self._presence.unsubscribe()

    def release(self, start: int, end: int, *, keep: Collection[int]) -> None:
        """Release the sequences from `start` on and before `end`, except for those to keep."""
        self.sequences -= {each for each in self.sequences if start <= each < end and each not in keep}

    async def claim(self, sequences: Collection[int]) -> list[int]:
        """Hold the sequences that no other reader holds, and return them.

        It announces its claim before it asks: of two readers at once, at least one learns of the other and
        releases its claim.
        """
        self.sequences.update(sequences)
        for other in await held_by_consumers(self._connection, self._queue):
            if other.reader != self._reader:
                self.sequences -= other.sequences
        return sorted(self.sequences.intersection(sequences))


class JetStreamDeadLetterQueue:
    """See `dead_letter_queue.DeadLetterQueue`."""

    def __init__(self, connection: NatsConnection, url: str, name: str) -> None:
        self._connection = connection
        self._url = url
        self.name = name
        self._stream = stream_of(name)

    async def count(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.count`."""
        with _reported(self._url):
            held = await held_by_consumers(self._connection, self.name)
            stream = await find_stream(self._connection, self.name)
        return None if stream is None else max(0, stream.state.messages - sum(each.count for each in held))

    async def in_use(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.in_use`."""
        with _reported(self._url):
            return sum(each.count for each in await held_by_consumers(self._connection, self.name))

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        """See `dead_letter_queue.DeadLetterQueue.browse`."""
        with _reported(self._url):
            stored = await self._stored()
            held = frozenset[int]().union(
                *(each.sequences for each in await held_by_consumers(self._connection, self.name))
            )
        start = stored.first
        while start <= stored.last and limit > 0:
            with _reported(self._url):
                messages, start = await stored.following(start, whole=whole)
            for sequence, dead_letter in messages:
                if sequence not in held and limit > 0:
                    limit -= 1
                    see(dead_letter)

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        """See `dead_letter_queue.DeadLetterQueue.take`."""
        removed = 0
        with _reported(self._url):
            # A later call takes the messages that arrive from now on: a handler may cause new dead letters.
            stored = await self._stored()
        start = stored.first
        if start > stored.last:
            return 0
        async with self._holding() as hold:
            while start <= stored.last and limit > 0:
                # Each window asks the other readers first.
                window = range(start, min(start + WINDOW, stored.last + 1))
                with _reported(self._url):
                    # Hold first, then read: a message that another reader removed in between is not read.
                    claimed = frozenset(await hold.claim(window))
                start = window.start if claimed else window.stop
                while start < window.stop and limit > 0:
                    with _reported(self._url):
                        read, end = await stored.following(start)
                    messages = [each for each in read if each[0] in claimed][:limit]
                    hold.release(start, end, keep={sequence for sequence, _ in messages})
                    limit -= len(messages)
                    for group in in_groups(messages, _size):
                        removed += await self._passed_on(stored, hold, group, handle)
                        if enough():
                            return removed
                    # What was read behind the window is not held yet.
                    start = next((sequence for sequence, _ in read if sequence >= window.stop), end)
        return removed

    async def _passed_on(
        self, stored: StreamMessages, hold: _Hold, group: Sequence[NumberedDeadLetter], handle: Handle
    ) -> int:
        """Pass held messages to the handler, and remove what it chooses; return how many."""
        chosen = await handle([dead_letter for _, dead_letter in group])
        gone = [sequence for sequence, dead_letter in group if dead_letter.id in chosen]
        removed = await self._remove(stored, gone)
        hold.sequences.difference_update(gone)
        return removed

    async def purge(self, on_progress: Progress = no_progress) -> int:
        """See `dead_letter_queue.DeadLetterQueue.purge`."""
        return await take_all(self, on_progress)

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """See `dead_letter_queue.DeadLetterQueue.put_back`."""
        with _reported(self._url):
            if await find_stream(self._connection, self.name) is None:
                missing = Published(PublishStatus.UNROUTABLE, f"there is no queue {self.name!r}")
                return [missing] * len(dead_letters)
            outcomes: list[Published] = []
            for group in in_groups(dead_letters, lambda dead_letter: dead_letter.size):
                outcomes += await self._publish(group)
            return outcomes

    async def _stored(self) -> StreamMessages:
        return StreamMessages(self._connection, self.name, await find_stream(self._connection, self.name))

    async def _remove(self, stored: StreamMessages, sequences: Sequence[int]) -> int:
        """Remove messages; return how many were still there."""
        subject = f"$JS.API.STREAM.MSG.DELETE.{self._stream}"
        with _reported(self._url):
            # Without secure erase, which would overwrite each message on the disk.
            answers = await self._answers(
                [
                    await self._connection.ask(
                        subject, json.dumps({"seq": sequence, "no_erase": True}).encode()
                    )
                    for sequence in sequences
                ]
            )
            removed = 0
            for sequence, answer in zip(sequences, answers, strict=True):
                error = json.loads(answer.data).get("error")
                removed += error is None
                # Servers report a missing message in several ways.
                if error is not None and await stored.one(sequence) is not None:
                    raise NatsLost(f"a message cannot be removed: {error.get('description')}")
            return removed

    async def _publish(self, dead_letters: Sequence[DeadLetter]) -> list[Published]:
        outcomes: list[Published | None] = []
        requests = []
        for dead_letter in dead_letters:
            header = json.dumps(without_known(meta_of_dead_letter(dead_letter)), separators=(",", ":"))
            limit = self._connection.client.max_payload
            if why := too_large(header_bytes(header), len(dead_letter.body), limit):
                outcomes.append(Published(PublishStatus.REJECTED, why))
            else:
                requests.append(
                    await self._connection.ask(self.name, dead_letter.body, {META_HEADER: header})
                )
                outcomes.append(None)
        answers = iter([read_answer(answer.headers, answer.data) for answer in await self._answers(requests)])
        return [next(answers) if outcome is None else outcome for outcome in outcomes]

    async def _answers(self, requests: Sequence["asyncio.Future[Msg]"]) -> list[Msg]:
        """Wait for all answers; NatsLost when one does not come."""
        if not requests:
            return []
        _, late = await asyncio.wait(requests, timeout=ANSWER_SECONDS)
        if late:
            for each in late:
                each.cancel()
            raise NatsLost(f"{len(late)} requests were not answered within {ANSWER_SECONDS:g} s")
        return [each.result() for each in requests]

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[_Hold]:
        hold = _Hold(self._connection, self.name)
        with _reported(self._url):
            await hold.announce()
        try:
            yield hold
        finally:
            await hold.let_go()


def _size(numbered: NumberedDeadLetter) -> int:
    return len(numbered[1].body)


@contextmanager
def _reported(url: str) -> Iterator[None]:
    try:
        yield
    except NatsLost as lost:
        raise lost.at(url) from lost
    except APIError as error:
        raise BrokerUnavailable(url, described(error)) from error
