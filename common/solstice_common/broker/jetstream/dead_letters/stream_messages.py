"""Reads the messages that a stream has stored, by their sequences.

It needs no consumer, so that reading changes nothing: a work queue allows no second one. From server 2.11 on, one
request reads many messages ("batch direct get"). Each message costs a request to the leader before that, where the user
may not read so, on streams with replicas (any of which may answer, also one that is behind), and without the inside of
nats-py, whose reading of the connection some heads end (`nats_client`).
"""

import asyncio
import base64
import json
from collections.abc import Collection, Sequence
from typing import Final

from nats.aio.msg import Msg
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.dead_letters.hashed_bodies import GROUP_BYTES, HashedBody
from solstice_common.broker.dead_letters.meta_records import dead_letter_of
from solstice_common.broker.jetstream.jetstream_names import stream_of
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsDenied
from solstice_common.broker.jetstream.nats_records import meta_of_head, read_meta
from solstice_common.runtime.public_interfaces import public_only

WINDOW: Final = 500
"""The most messages that are read at once."""
READ_BYTES: Final = 16 << 20
"""The most bytes that single requests read at once."""
BATCHES_SINCE: Final = (2, 11)
"""The first version of the server that answers a request with many messages."""

NumberedDeadLetter = tuple[int, DeadLetter]
"""A dead letter and its sequence."""


class StreamMessages:
    """The messages of a queue between `first` and `last`.

    Without messages, `last` is the smaller one.
    """

    def __init__(self, connection: NatsConnection, queue: str, found: StreamInfo | None) -> None:
        self._connection = connection
        self._queue = queue
        self._stream = stream_of(queue)
        self.first, self.last, self.at_once = 1, 0, 1
        self._reads_batches = False
        self._singly_until = 0
        """Up to this sequence a batch has just failed to read messages."""
        if found is not None and found.state.messages:
            self.first, self.last = max(1, found.state.first_seq), found.state.last_seq
            # Of a message nothing is known before it is read, so each may have as many bytes as the server allows.
            largest = min(connection.client.max_payload, found.state.bytes)
            self.at_once = max(1, min(WINDOW, READ_BYTES // max(1, largest)))
            self._reads_batches = (
                connection.server_version >= BATCHES_SINCE
                and not public_only("nats")
                and bool(found.config.allow_direct)
                and (found.config.num_replicas or 1) == 1
            )

    async def following(self, start: int, *, whole: bool = False) -> tuple[Sequence[NumberedDeadLetter], int]:
        """Return some messages from this sequence on, in order, and where the others begin.

        Raises NatsLost and APIError.
        """
        if self._reads_batches and start >= self._singly_until:
            if messages := await self._batch(start, whole=whole):
                return messages, messages[-1][0] + 1
            self._singly_until = start + WINDOW
        part = range(start, min(start + self.at_once, self.last + 1))
        messages = await self.at(part, whole=whole)
        return messages, part.stop if messages else await self.next(part.stop)

    async def at(self, sequences: Collection[int], *, whole: bool = False) -> list[NumberedDeadLetter]:
        """Return the messages of these sequences that exist, in order.

        The leader of the stream answers. Raises NatsLost and APIError.
        """
        read = await asyncio.gather(*(self.one(sequence, whole=whole) for sequence in sequences))
        return [
            (sequence, dead_letter)
            for sequence, dead_letter in zip(sequences, read, strict=True)
            if dead_letter is not None
        ]

    async def one(self, sequence: int, *, whole: bool = False) -> DeadLetter | None:
        """Return the message of this sequence; None without one. Raises NatsLost and APIError."""
        try:
            found = await self._connection.call(
                self._connection.jetstream.get_msg(self._stream, seq=sequence)
            )
        except NotFoundError:
            return None
        meta = meta_of_head(base64.b64decode(found.hdrs or ""))
        return _dead_letter(self._queue, sequence, meta, found.data or b"", whole=whole)

    async def next(self, sequence: int) -> int:
        """Return the sequence of the first message from here on; beyond `last` without one."""
        try:
            found = await self._connection.call(
                self._connection.jetstream.get_msg(self._stream, seq=sequence, subject=self._queue, next=True)
            )
        except NotFoundError:
            return self.last + 1
        return found.seq or self.last + 1

    async def _batch(self, start: int, *, whole: bool) -> Sequence[NumberedDeadLetter]:
        """Read many messages with one request; those before the first whose head cannot be read.

        None, too, where the server does not read batches for us.
        """
        batch = _Batch(self._queue, range(start, self.last + 1), whole=whole)
        try:
            await self._connection.call(self._answered(batch))
        except NatsDenied:
            self._reads_batches = False
            return ()
        self._reads_batches = not batch.is_refused
        return batch.messages

    async def _answered(self, batch: "_Batch") -> None:
        client = self._connection.client
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=batch.take)
        try:
            await client.publish(f"$JS.API.DIRECT.GET.{self._stream}", batch.request, reply=inbox)
            await batch.ended.wait()
        finally:
            await subscription.unsubscribe()


class _Batch:
    """The answers to one request for many messages.

    A stranger may have written the heads of messages, also so that they look like a status of the server.
    """

    def __init__(self, queue: str, sequences: range, *, whole: bool) -> None:
        self.request = json.dumps(
            {"seq": sequences.start, "batch": min(WINDOW, len(sequences)), "max_bytes": GROUP_BYTES}
        ).encode()
        self.messages: list[NumberedDeadLetter] = []
        self.ended = asyncio.Event()
        self.is_refused = False
        """Whether the server does not answer such requests, or those of this stream."""
        self._queue = queue
        self._range = sequences
        self._whole = whole
        self._skips_the_rest = False

    async def take(self, answer: Msg) -> None:
        """Take one answer of the server."""
        headers = answer.headers or {}
        if "Nats-Sequence" in headers:
            self._take_message(headers, answer.data)
        elif (status := headers.get("Status")) is None:
            self._skips_the_rest = True
        else:
            self.is_refused = status not in {"204", "404"}
            self.ended.set()

    def _take_message(self, headers: dict[str, str], body: bytes) -> None:
        if "Nats-Num-Pending" not in headers:
            # An older server, which leads the stream in a cluster of several versions: it sends no second one.
            self.is_refused = True
            self.ended.set()
            return
        sequence = headers["Nats-Sequence"]
        at_least = self.messages[-1][0] + 1 if self.messages else self._range.start
        if self._skips_the_rest or not sequence.isdecimal() or int(sequence) < at_least:
            self._skips_the_rest = True
        elif int(sequence) in self._range:
            number = int(sequence)
            dead_letter = _dead_letter(self._queue, number, read_meta(headers), body, whole=self._whole)
            self.messages.append((number, dead_letter))


def _dead_letter(
    queue: str, sequence: int, meta: dict[str, object], data: bytes, *, whole: bool
) -> DeadLetter:
    body = HashedBody(len(data), whole=whole)
    body.add(data)
    held, large = body.read()
    return dead_letter_of(queue, held, meta, message_id=f"{queue}/{sequence}", large=large)
