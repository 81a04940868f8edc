"""The dead-letter queues of Redis, for people.

`browse` reads the stream and writes nothing. The entries that `take` passes on are pending for a consumer
whose name contains its connection: once that connection is closed, the next reader returns the entries
without waiting for the end of the lease.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from operator import itemgetter
from typing import Final, Self

import orjson
from redis.exceptions import ResponseError

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
from solstice_common.broker.dead_letters.hashed_bodies import GROUP, HashedBody, in_groups
from solstice_common.broker.dead_letters.meta_records import dead_letter_of, meta_of_dead_letter
from solstice_common.broker.links.background import background
from solstice_common.broker.protocol import CONFIRMED, Published, PublishStatus
from solstice_common.broker.redis_streams.redis_consumer import LEAVE_SECONDS, RENEWALS
from solstice_common.broker.redis_streams.redis_consumer_scripts import LEAVE, SETTLE, TAKE
from solstice_common.broker.redis_streams.redis_queue_scripts import (
    BROWSE,
    CONSUMERS,
    DEPTH,
    PART,
    PUT_BACK,
)
from solstice_common.broker.redis_streams.redis_replies import client_names
from solstice_common.broker.redis_streams.redis_url import RedisAddress, redis_address
from solstice_common.broker.redis_streams.redis_wire import (
    RedisDenied,
    RedisLost,
    RedisRefusal,
    RedisWire,
    client_name,
    open_redis_wire,
)
from solstice_common.broker.redis_streams.stream_entries import HEADERS_BYTES, meta_of
from solstice_common.errors import BrokerUnavailable

AT_ONCE_BYTES: Final = 4 << 20
"""After so many bytes no further entry is read together with others."""
PART_BYTES: Final = 16 << 20
"""The largest entry that is read at once, since the server copies a whole entry for every part of it."""
NO_BYTES: Final = 0
MOST_META_BYTES: Final = 2 * HEADERS_BYTES
"""A larger `meta`, which only a stranger can write, is not read."""
READER: Final = "$dead-letters:"
"""The prefix of our consumers' names, before the connection's name."""

StoredEntry = tuple[bytes, Sequence[bytes], int]
"""An entry's id, its fields, and its bytes; above SMALL_BYTES the fields are read in parts."""


class RedisDeadLetters:
    """See `dead_letter_queue.DeadLetterQueues`."""

    def __init__(self, wire: RedisWire, address: RedisAddress, name: str) -> None:
        self._wire = wire
        self._address = address
        self._name = name

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str) -> AsyncIterator[Self]:
        """Connect under the connection name `name`; BrokerUnavailable when that fails."""
        address, own_name = redis_address(url), f"{name} {uuid.uuid4().hex}"
        # Not a link, which reconnects: a command reports a lost connection, and the next one continues.
        with _reported(address.shown):
            async with open_redis_wire(address, own_name) as wire:
                yield cls(wire, address, client_name(own_name))

    @property
    def url(self) -> str:
        """See `dead_letter_queue.DeadLetterQueues.url`."""
        return self._address.shown

    def queue(self, name: str) -> "RedisDeadLetterQueue":
        """See `dead_letter_queue.DeadLetterQueues.queue`."""
        return RedisDeadLetterQueue(self._wire, self._address, name, connection_name=self._name)


class RedisDeadLetterQueue:
    """See `dead_letter_queue.DeadLetterQueue`."""

    def __init__(self, wire: RedisWire, address: RedisAddress, name: str, *, connection_name: str) -> None:
        self._wire = wire
        self._address = address
        self._prefix = address.prefix
        self._lease_ms = str(int(address.lease_seconds * 1000))
        self.name = name
        self._connection_name = connection_name

    async def count(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.count`."""
        depth = await self._depth()
        return depth[0] if depth else None

    async def in_use(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.in_use`."""
        depth = await self._depth()
        return depth[1] if depth else 0

    async def _depth(self) -> Sequence[int]:
        """Return how many are free, and how many are held; empty without such a queue."""
        with _reported(self._address.shown):
            await self._return_of_dead_readers()
            depth: Sequence[int] = await self._wire.call(DEPTH, self._prefix, self.name, self._lease_ms)
        return depth

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        """See `dead_letter_queue.DeadLetterQueue.browse`."""
        with _reported(self._address.shown):
            await self._return_of_dead_readers()
        start = b"-"
        while start and limit > 0:
            entries, start = await self._next(start, limit)
            for entry in entries:
                dead_letter = await self._read(entry, whole=whole)
                if dead_letter is not None:
                    limit -= 1
                    see(dead_letter)

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        """See `dead_letter_queue.DeadLetterQueue.take`."""
        # No more than wait now: a handler may cause new dead letters, which a later call takes.
        left, removed = min(limit, await self.count() or 0), 0
        if not left:
            return 0
        start = b"-"
        async with self._consuming() as consumer:
            while left > 0 and start:
                entries, start = await self._next(start, left)
                held = await self._hold(consumer, entries) if entries else []
                left -= len(held)
                for part in in_groups(held, itemgetter(2)):
                    removed += await self._passed_on(consumer, part, handle)
                    if enough():
                        return removed
        return removed

    async def _passed_on(self, consumer: str, entries: Sequence[StoredEntry], handle: Handle) -> int:
        """Pass held entries to the handler, and remove what it chooses; return how many."""
        read = [(entry[0], await self._read(entry)) for entry in entries]
        group = {entry_id: dead_letter for entry_id, dead_letter in read if dead_letter is not None}
        chosen = await handle(list(group.values()))
        return await self._remove(
            consumer, [entry_id for entry_id, each in group.items() if each.id in chosen]
        )

    async def purge(self, on_progress: Progress = no_progress) -> int:
        """See `dead_letter_queue.DeadLetterQueue.purge`."""
        return await take_all(self, on_progress)

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """See `dead_letter_queue.DeadLetterQueue.put_back`."""
        with _reported(self._address.shown):
            return [await self._put_back(dead_letter) for dead_letter in dead_letters]

    async def _put_back(self, dead_letter: DeadLetter) -> Published:
        try:
            meta = orjson.dumps(meta_of_dead_letter(dead_letter))
        except TypeError as error:
            return Published(PublishStatus.REJECTED, f"Redis cannot carry it: {error}")
        was_put_back = await self._wire.call(PUT_BACK, self._prefix, self.name, meta, dead_letter.body)
        match was_put_back:
            case None:
                return Published(PublishStatus.UNROUTABLE, f"there is no queue {self.name!r}")
            case 0:
                return Published(PublishStatus.REJECTED, f"the queue {self.name!r} is full")
            case _:
                return CONFIRMED

    async def _next(self, start: bytes, most: int) -> tuple[list[StoredEntry], bytes]:
        """Return some entries that no consumer holds, from `start` on, and the next start."""
        with _reported(self._address.shown):
            entries, last = await self._wire.call(
                *(BROWSE, self._prefix, self.name, self._lease_ms, start),
                *(min(GROUP, most), PART_BYTES, AT_ONCE_BYTES),
            )
        return [tuple(entry) for entry in entries], b"(" + last if last else b""

    async def _hold(self, consumer: str, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
        """Have so many entries delivered; others than these if another reader was faster."""
        with _reported(self._address.shown):
            _, held, *_ = await self._wire.call(
                TAKE, self._prefix, self.name, consumer, self._lease_ms, len(entries), "", NO_BYTES
            )
        known = {entry[0]: entry for entry in entries}
        return [known.get(entry_id, (entry_id, (), size)) for entry_id, _, _, _, size in held]

    async def _read(self, entry: StoredEntry, *, whole: bool = False) -> DeadLetter | None:
        """Return the dead letter of an entry; None if it is gone."""
        entry_id, fields, size = entry
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        if size and not fields:
            body = await self._read_in_parts(entry_id, whole=whole)
            meta = await self._part(entry_id, "meta", 0, MOST_META_BYTES)
            if body is None or meta is None:
                return None
            named[b"meta"] = meta[1] if meta[0] <= MOST_META_BYTES else b""
        else:
            body = HashedBody(len(named.get(b"body", b"")), whole=whole)
            body.add(named.get(b"body", b""))
        held, large = body.read()
        return dead_letter_of(self.name, held, meta_of(named), message_id=entry_id.decode(), large=large)

    async def _read_in_parts(self, entry_id: bytes, *, whole: bool) -> HashedBody | None:
        """Return the body of an entry; None if it is gone."""
        found, at = await self._part(entry_id, "body", 0, PART_BYTES), 0
        body = None if found is None else HashedBody(found[0], whole=whole)
        while body is not None and found is not None:
            body.add(found[1])
            at += len(found[1])
            if body.is_complete:
                return body
            found = await self._part(entry_id, "body", at, PART_BYTES)
        return None

    async def _part(self, entry_id: bytes, field: str, start: int, count: int) -> tuple[int, bytes] | None:
        """The size of an entry's field, and a part of it; None without the entry."""
        with _reported(self._address.shown):
            found = await self._wire.call(PART, self._prefix, self.name, entry_id, field, start, count)
        return None if found is None else (found[0], found[1])

    async def _remove(self, consumer: str, entries: Sequence[bytes]) -> int:
        """Remove entries that the consumer still holds; return how many."""
        settlements = [part for entry_id in entries for part in ("ack", entry_id, "", "")]
        with _reported(self._address.shown):
            _, _, gone = await self._wire.call(SETTLE, self._prefix, self.name, consumer, *settlements)
        return int(gone)

    @asynccontextmanager
    async def _consuming(self) -> AsyncIterator[str]:
        """Create a consumer and yield its name; leaving returns its entries."""
        consumer = f"{READER}{self._connection_name}:{uuid.uuid4().hex}"
        try:
            async with background({"dead-letters-lease": self._renew(consumer)}):
                yield consumer
        finally:
            # Without an answer the next reader returns them, since our connection will be closed.
            with suppress(RedisLost), _reported(self._address.shown, lost=False):
                await self._wire.call(LEAVE, self._prefix, self.name, consumer, seconds=LEAVE_SECONDS)

    async def _renew(self, consumer: str) -> None:
        """Keep the consumer's lease while its entries are worked on."""
        while True:
            await asyncio.sleep(self._address.lease_seconds / RENEWALS)
            # An error shows in the next call of the handler's group as well.
            with suppress(RedisLost, RedisRefusal):
                await self._wire.call(
                    TAKE, self._prefix, self.name, consumer, self._lease_ms, 0, "", NO_BYTES
                )

    async def _return_of_dead_readers(self) -> None:
        """Return the entries of readers whose connections are closed, such as a killed replay's."""
        names = [name.decode() for name in await self._wire.call(CONSUMERS, self._prefix, self.name)]
        readers = [name for name in names if name.startswith(READER)]
        if not readers:
            return
        try:
            living = client_names(await self._wire.command("CLIENT", "LIST"))
        except (ResponseError, RedisDenied):
            return  # not allowed: their leases have to end
        for reader in readers:
            if reader.removeprefix(READER).partition(":")[0] not in living:
                await self._wire.call(LEAVE, self._prefix, self.name, reader)


@contextmanager
def _reported(url: str, *, lost: bool = True) -> Iterator[None]:
    """Turn refusals and a lost connection into errors of the contract.

    A lost connection is left as it is when `lost` is false.
    """
    try:
        yield
    except RedisLost as error:
        if not lost:
            raise
        raise error.at(url) from error
    except RedisDenied as error:
        raise error.at(url) from error
    except (RedisRefusal, ResponseError) as error:
        raise BrokerUnavailable(url, str(error)) from error
