"""The dead-letter queues of the embedded broker, for people."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self, TypeVar

from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    Enough,
    Handle,
    Progress,
    See,
    never_enough,
    no_progress,
)
from solstice_common.broker.dead_letters.hashed_bodies import in_groups
from solstice_common.broker.embedded import dead_letter_rows
from solstice_common.broker.embedded.embedded_broker import EmbeddedBroker
from solstice_common.broker.protocol import Published
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.storage.sqlite import Work

T = TypeVar("T")


class EmbeddedDeadLetters:
    """See `dead_letter_queue.DeadLetterQueues`."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str) -> AsyncIterator[Self]:
        """Open the file of `url`, as `EmbeddedBroker.open` does."""
        async with EmbeddedBroker.open(url, name=name) as broker:
            yield cls(broker)

    @property
    def url(self) -> str:
        """See `dead_letter_queue.DeadLetterQueues.url`."""
        return self._broker.url

    def queue(self, name: str) -> "EmbeddedDeadLetterQueue":
        """See `dead_letter_queue.DeadLetterQueues.queue`."""
        return EmbeddedDeadLetterQueue(self._broker, name)


class EmbeddedDeadLetterQueue:
    """See `dead_letter_queue.DeadLetterQueue`. `browse` reads the file and writes nothing."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self._broker = broker
        self.name = name

    async def count(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.count`."""
        depth = await self._broker.depth(self.name)
        return None if depth is None else depth.ready

    async def in_use(self) -> int | None:
        """See `dead_letter_queue.DeadLetterQueue.in_use`."""
        depth = await self._broker.depth(self.name)
        return 0 if depth is None else depth.pending

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        """See `dead_letter_queue.DeadLetterQueue.browse`."""
        await self._broker.requeue_of_dead_processes()
        found = await self._run(partial(dead_letter_rows.waiting, queue=self.name, limit=limit))
        for group in in_groups(found, _size):
            for _, dead_letter in await self._read(group, whole=whole):
                see(dead_letter)

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        """See `dead_letter_queue.DeadLetterQueue.take`."""
        await self._broker.requeue_of_dead_processes()
        removed = 0
        async with self._broker.holding(self.name) as consumer_id:
            held = await self._run(
                partial(dead_letter_rows.hold, queue=self.name, consumer_id=consumer_id, limit=limit)
            )
            for numbered in in_groups(held, _size):
                group = await self._read(numbered)
                chosen = await handle([dead_letter for _, dead_letter in group])
                numbers = [number for number, dead_letter in group if dead_letter.id in chosen]
                removed += await self._run(
                    partial(dead_letter_rows.remove, consumer_id=consumer_id, numbers=numbers)
                )
                if enough():
                    break
        return removed

    async def purge(self, on_progress: Progress = no_progress) -> int:
        """See `dead_letter_queue.DeadLetterQueue.purge`."""
        removed = await self._run(partial(dead_letter_rows.purge, queue=self.name))
        on_progress(removed)
        return removed

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        """See `dead_letter_queue.DeadLetterQueue.put_back`."""
        outcomes = await self._run(
            partial(dead_letter_rows.put_back, queue=self.name, dead_letters=dead_letters)
        )
        self._broker.notifier.notify()
        return outcomes

    async def _read(
        self, numbered: Sequence[dead_letter_rows.NumberedSize], *, whole: bool = False
    ) -> list[tuple[int, DeadLetter]]:
        numbers = [number for number, _ in numbered]
        return await self._run(partial(dead_letter_rows.read, queue=self.name, numbers=numbers, whole=whole))

    async def _run(self, work: Work[T]) -> T:
        try:
            return await self._broker.submit(work)
        except StoreUnavailable as error:
            raise BrokerUnavailable(self._broker.url, error.detail) from error


def _size(numbered: dead_letter_rows.NumberedSize) -> int:
    return numbered[1]
