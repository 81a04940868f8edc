"""Consumes one queue of the embedded broker's file."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol, TypeVar

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict
from solstice_common.broker.embedded import rows
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.protocol import Delivery, new_message_id
from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.memory_notifier import Notifier
from solstice_common.runtime.pausing import pause
from solstice_common.storage.sqlite import Work

T = TypeVar("T")

POLL_SECONDS: Final = 1.0
"""Seconds between a waiting consumer's looks without a notification.

It polls for messages and dead processes; that costs well under 0.1 % of a core.
"""


class EmbeddedConsumerBroker(Protocol):
    """What a consumer needs from its broker."""

    @property
    def name(self) -> str: ...

    @property
    def notifier(self) -> Notifier: ...

    def submit(self, work: Work[T]) -> "asyncio.Future[T]":
        """Begin a write."""
        ...

    async def persist(self, work: Work[T]) -> T:
        """Write, and retry until it succeeds; StoreUnavailable only once the broker is closed."""
        ...

    async def pause_after(self, error: StoreUnavailable) -> None:
        """Pause before the next try; raise `error` when there is none."""
        ...

    def note_trouble(self, error: StoreUnavailable | None) -> None:
        """Note whether the file can be written."""
        ...

    async def requeue_of_dead_processes(self) -> None:
        """Requeue the messages of killed processes."""
        ...


class EmbeddedConsumer:
    """`Consumer` of one queue of the file.

    Messages are claimed when `batch` is called, not before.
    """

    def __init__(
        self,
        broker: EmbeddedConsumerBroker,
        queue: str,
        consumer_id: int,
        prefetch: int,
        notified: asyncio.Event,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._consumer_id = consumer_id
        self._prefetch = prefetch
        self._notified = notified
        self._unsettled: dict[object, Delivery] = {}
        self._claim: asyncio.Future[list[Delivery]] | None = None

    @property
    def subscribed(self) -> bool:
        return True

    async def batch(self) -> Sequence[Delivery]:
        while True:
            self._notified.clear()
            await self._broker.requeue_of_dead_processes()
            if deliveries := await self._claimed():
                return deliveries
            await pause(POLL_SECONDS, unless=self._notified)

    async def _claimed(self) -> list[Delivery]:
        """Return the ready messages, within the prefetch."""
        if self._claim is None:
            credit = self._prefetch - len(self._unsettled)
            if credit <= 0:
                return []
            self._claim = self._broker.submit(
                partial(rows.claim, queue=self._queue, consumer_id=self._consumer_id, limit=credit)
            )
        try:
            # A cancelled caller does not cancel the claim; the next call gets its messages.
            deliveries = await asyncio.shield(self._claim)
        except StoreUnavailable as error:
            self._claim = None
            await self._broker.pause_after(error)
            return []
        self._claim = None
        self._broker.note_trouble(None)
        self._unsettled.update((delivery.tag, delivery) for delivery in deliveries)
        return deliveries

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        acked: list[int] = []
        retried: list[int] = []
        refused: list[rows.RefusedMessage] = []
        for delivery, verdict in verdicts:
            # A message's number may be used again once it is settled: compare the delivery itself.
            if self._unsettled.get(delivery.tag) is not delivery:
                continue
            del self._unsettled[delivery.tag]
            assert isinstance(delivery.tag, int)  # noqa: S101  ours: `rows.claim` made it
            match verdict:
                case Ack():
                    acked.append(delivery.tag)
                case Retry():
                    retried.append(delivery.tag)
                case Refuse():
                    refused.append(self._dead_letter(delivery.tag, delivery, verdict))
        if not (acked or retried or refused):
            return
        # Once closed, unsettled messages are delivered again.
        with contextlib.suppress(StoreUnavailable):
            await self._broker.persist(
                partial(
                    rows.settle,
                    queue=self._queue,
                    consumer_id=self._consumer_id,
                    verdicts=rows.SettledMessages(acked=acked, retried=retried, refused=refused),
                )
            )
        self._notified.set()
        if retried or refused:
            self._broker.notifier.notify()

    def close(self) -> None:
        """Stop settling."""
        self._unsettled.clear()

    def _dead_letter(self, message: int, delivery: Delivery, refusal: Refuse) -> rows.RefusedMessage:
        headers = refusal_headers(
            delivery, refusal, queue=self._queue, by=self._broker.name, at=datetime.now(UTC)
        )
        return rows.RefusedMessage(message=message, headers=headers, message_id=new_message_id())
