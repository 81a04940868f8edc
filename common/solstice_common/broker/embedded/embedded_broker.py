"""The broker without a server: exchanges, queues, acks and dead letters in one SQLite database.

The processes of one machine share the file. Beside `FILE` are `FILE.notify/` (the FIFOs of listening processes) and
`FILE.owners/` (the locks of living processes). The messages of a killed consumer return to their queue within about a
second, as soon as another consumer of the file looks.

A `memory:` URL names a database in the memory of this process: for tests and trials.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import structlog

from solstice_common.broker.capabilities import Capabilities, Certainty, DelayedRetry, QueueMeasure
from solstice_common.broker.embedded import dead_letter_rows, rows
from solstice_common.broker.embedded.embedded_consumer import POLL_SECONDS, EmbeddedConsumer
from solstice_common.broker.embedded.process_locks import MemoryOwners, Owners, ProcessLocks
from solstice_common.broker.protocol import (
    CONFIRMED,
    BrokerHealth,
    Message,
    Published,
    PublishStatus,
    QueueDepth,
    new_message_id,
)
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.memory_notifier import Notifier
from solstice_common.storage.sqlite import SqliteDatabase, Work, migrations_of
from solstice_common.storage.sqlite_connections import unusable_file
from solstice_common.storage.sqlite_place import MemoryPlace, SqlitePlace, notifier_beside, sqlite_place
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Topology

T = TypeVar("T")

TROUBLE_SECONDS: Final = 0.5
"""The pause after a failed write before the next try."""

CAPABILITIES: Final = Capabilities(
    transport="embedded",
    durable_on_confirm=Certainty.YES,
    durable_when="always",
    failover_safe=None,
    delayed_retry=DelayedRetry.AT_ONCE,
    priorities=Certainty.NO,
    max_message_bytes=None,
    dedupe_window_seconds=0.0,
    counts_interruptions=Certainty.YES,
    atomic_dead_letter=True,
    atomic_group=True,
    queue_measures=(QueueMeasure.PENDING, QueueMeasure.OLDEST),
    backpressure="a full disk",
)
MEMORY_CAPABILITIES: Final = replace(
    CAPABILITIES,
    transport="memory",
    durable_on_confirm=Certainty.NO,
    durable_when="never",
    backpressure="1 GiB of messages",
)
MEMORY_DEGRADED: Final = (
    "messages are in the memory of this process, and end with it: AMQP_URL=sqlite:///FILE keeps them"
)

log = structlog.get_logger(__name__)

_Publish = tuple[Sequence[rows.MessageRow], "asyncio.Future[Sequence[Published]]"]


class EmbeddedBroker:
    """`Broker` on a SQLite database; open with `EmbeddedBroker.open`."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        database: SqliteDatabase,
        notifier: Notifier,
        owners: Owners,
        owner_id: int,
    ) -> None:
        self._url = url
        self.name = name
        self.notifier = notifier
        self._database = database
        self._in_memory = isinstance(database.place, MemoryPlace)
        self._owners = owners
        self._owner_id = owner_id
        self._trouble = ""
        self._closed = False
        self._waiting: list[_Publish] = []
        self._sending = False
        self._sweep_at = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, name: str) -> AsyncIterator["EmbeddedBroker"]:
        """Open the broker in the file or memory that `url` names, created when missing.

        `sqlite_place` has the rule of the URL.

        Raises ConfigurationError for a wrong URL or place, StoreUnavailable when the file cannot be used, SchemaTooNew.
        """
        place = sqlite_place(url, "broker")
        migrations = migrations_of("solstice_common.broker.embedded.schema")
        async with SqliteDatabase.open(place, migrations) as database:
            notifier, owners = _beside(place)
            with owners.hold() as token:
                owner_id = await database.write(partial(rows.add_owner, token=token, name=name))
                broker = cls(
                    url,
                    name=name,
                    database=database,
                    notifier=notifier,
                    owners=owners,
                    owner_id=owner_id,
                )
                if broker.health.degraded is not None:
                    log.warning(LogEvent.BROKER_DEGRADED, url=url, detail=broker.health.degraded)
                try:
                    await broker._requeue_of_lost_owners()
                    yield broker
                finally:
                    broker._close()
                    with contextlib.suppress(StoreUnavailable):  # otherwise it is cleaned up as after a kill
                        if await database.write(partial(rows.remove_owner, token=token)):
                            notifier.notify()

    @property
    def url(self) -> str:
        return self._url

    @property
    def health(self) -> BrokerHealth:
        return BrokerHealth(
            connected=not self._closed,
            blocked=self._trouble or None,
            detail=self._trouble,
            degraded=MEMORY_DEGRADED if self._in_memory else None,
            transport=self.capabilities.transport,
        )

    @property
    def capabilities(self) -> Capabilities:
        return MEMORY_CAPABILITIES if self._in_memory else CAPABILITIES

    async def ready(self, timeout_seconds: float) -> None:  # noqa: ARG002  the contract's; a file needs none
        """Return at once: an opened file is connected. BrokerUnavailable when it was closed."""
        if self._closed:
            raise BrokerUnavailable(self._url, "it was closed")

    async def declare(self, topology: Topology) -> None:
        await self._write(partial(rows.declare, topology=topology))
        self.notifier.notify()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        stored = [rows.row_of(message, new_message_id()) for message in messages]
        if self._closed:
            return [Published(PublishStatus.UNKNOWN, "the broker was closed")] * len(stored)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Sequence[Published]] = loop.create_future()
        self._waiting.append((stored, outcome))
        if not self._sending:
            # In the next iteration of the event loop, so that everything else published in this one is
            # included.
            self._sending = True
            loop.call_soon(self._send)
        return await outcome

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[EmbeddedConsumer]:
        async with self.notifier.listen() as notified:
            consumer_id = await self.persist(partial(rows.add_consumer, owner_id=self._owner_id, queue=queue))
            consumer = EmbeddedConsumer(self, queue, consumer_id, prefetch, notified)
            try:
                yield consumer
            finally:
                consumer.close()
                with contextlib.suppress(StoreUnavailable):  # otherwise when the broker is closed
                    if await self._database.write(partial(rows.remove_consumer, consumer_id=consumer_id)):
                        self.notifier.notify()

    @asynccontextmanager
    async def holding(self, queue: str) -> AsyncIterator[int]:
        """Register a consumer and yield its id; leaving returns its messages uncounted."""
        consumer_id = await self._write(partial(rows.add_consumer, owner_id=self._owner_id, queue=queue))
        try:
            yield consumer_id
        finally:
            with contextlib.suppress(StoreUnavailable):  # otherwise it is cleaned up as after a kill
                if await self._database.write(partial(dead_letter_rows.release, consumer_id=consumer_id)):
                    self.notifier.notify()

    async def depth(self, queue: str) -> QueueDepth | None:
        await self.requeue_of_dead_processes()
        try:
            return await self._database.read(partial(rows.depth, queue=queue))
        except StoreUnavailable as error:
            raise BrokerUnavailable(self._url, error.detail) from error

    def submit(self, work: Work[T]) -> "asyncio.Future[T]":
        """Begin a write; see `SqliteDatabase.submit`."""
        return self._database.submit(work)

    async def persist(self, work: Work[T]) -> T:
        """Write, and retry until it succeeds; StoreUnavailable only once the broker is closed."""
        while True:
            try:
                result = await self._database.submit(work)
            except StoreUnavailable as error:
                await self.pause_after(error)
            else:
                self.note_trouble(None)
                return result

    async def pause_after(self, error: StoreUnavailable) -> None:
        """Pause before the next try; raise `error` when the broker is closed."""
        if self._closed:
            raise error
        self.note_trouble(error)
        await asyncio.sleep(TROUBLE_SECONDS)

    def note_trouble(self, error: StoreUnavailable | None) -> None:
        """Note whether the file can be written; log when that changes."""
        if error is not None and not self._trouble:
            log.warning(LogEvent.BROKER_FILE_FAILED, url=self._url, detail=error.detail)
        elif error is None and self._trouble:
            log.info(LogEvent.BROKER_FILE_RECOVERED, url=self._url)
        self._trouble = "" if error is None else error.detail

    async def requeue_of_dead_processes(self) -> None:
        """Requeue the messages of killed processes; checks at most once in `POLL_SECONDS`."""
        now = asyncio.get_running_loop().time()
        if now < self._sweep_at:
            return
        self._sweep_at = now + POLL_SECONDS
        await self._remove_owners(self._owners.dead_tokens())

    async def _requeue_of_lost_owners(self) -> None:
        """Requeue the messages of owners whose lock file is missing (the directory was cleaned)."""
        tokens = await self._database.read(rows.owner_tokens)
        await self._remove_owners([token for token in tokens if not self._owners.alive(token)])

    async def _remove_owners(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            with contextlib.suppress(StoreUnavailable):  # the next check tries again
                returned = await self._database.write(partial(rows.remove_owner, token=token))
                self._owners.forget(token)
                log.info(LogEvent.BROKER_OWNER_LOST, url=self._url, owner=token, returned=returned)
                if returned:
                    self.notifier.notify()

    async def _write(self, work: Work[T]) -> T:
        try:
            return await self._database.write(work)
        except StoreUnavailable as error:
            raise BrokerUnavailable(self._url, error.detail) from error

    def _send(self) -> None:
        batch, self._waiting = self._waiting, []
        if not batch:
            self._sending = False
            return
        stored = [row for publish, _ in batch for row in publish]
        written = self._database.submit(partial(rows.store, rows=stored))
        written.add_done_callback(partial(self._on_stored, batch))

    def _on_stored(self, batch: Sequence[_Publish], written: "asyncio.Future[list[Published]]") -> None:
        error = written.exception()
        if isinstance(error, StoreUnavailable):
            self.note_trouble(error)
        elif error is None:
            self.note_trouble(None)
            if CONFIRMED in written.result():
                self.notifier.notify()
        start = 0
        for publish, outcome in batch:
            end = start + len(publish)
            if outcome.done():
                pass  # its caller was cancelled
            elif error is None:
                outcome.set_result(written.result()[start:end])
            elif isinstance(error, StoreUnavailable):
                outcome.set_result([Published(PublishStatus.UNKNOWN, error.detail)] * len(publish))
            else:
                outcome.set_exception(error)
            start = end
        if self._closed:
            self._sending = False
        else:
            self._send()

    def _close(self) -> None:
        self._closed = True
        for publish, outcome in self._waiting:
            if not outcome.done():
                outcome.set_result([Published(PublishStatus.UNKNOWN, "the broker was closed")] * len(publish))
        self._waiting.clear()


def _beside(place: SqlitePlace) -> tuple[Notifier, Owners]:
    if isinstance(place, MemoryPlace):
        return notifier_beside(place, ".notify"), MemoryOwners(place.owners)
    try:
        return notifier_beside(place, ".notify"), ProcessLocks(place.with_name(f"{place.name}.owners"))
    except OSError as error:
        raise unusable_file(place, error) from error
