"""Holds the deliveries of one queue over one connection, and settles them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from solstice_common.broker.jetstream.jetstream_presence import answer_presence
from solstice_common.broker.jetstream.jetstream_pull import Puller
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsDenied, NatsLost
from solstice_common.broker.jetstream.nats_records import headers_of, read_meta, text_of
from solstice_common.broker.links.background import background
from solstice_common.broker.links.missing_rights import CONSUMING
from solstice_common.broker.protocol import HELD_BODY_BYTES

SETTLE_SECONDS: Final = 10.0
PARTING_SECONDS: Final = 3.0
RENEWALS: Final = 3
"""Renewals within one AckWait."""
ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
PROGRESS: Final = b"+WPI"


class JetStreamDelivery:
    """A Delivery whose properties are read on demand."""

    __slots__ = (
        "_again",
        "_claimed",
        "_headers",
        "_meta",
        "ack_subject",
        "body",
        "count",
        "omitted_bytes",
        "renewed_at",
        "tag",
    )

    def __init__(self, msg: Msg, *, again: Container[int] = ()) -> None:
        metadata = msg.metadata
        self.tag: int = metadata.sequence.stream
        """The sequence of the message in its stream."""
        self.count: int = metadata.num_delivered
        """How often it was delivered, this time included. Interruptions count as well."""
        self.ack_subject = msg.reply
        self.renewed_at = time.monotonic()
        """When its AckWait began, or began again."""
        is_large = len(msg.data) > HELD_BODY_BYTES
        # The server still has it: the dead letter is made of what it returns.
        self.body: bytes = b"" if is_large else bytes(msg.data)
        self.omitted_bytes = len(msg.data) if is_large else 0
        self._headers = msg.headers
        self._meta: dict[str, Any] | None = None
        self._claimed = False
        self._again = self.tag in again

    def claim(self) -> bool:
        """Whether this is the first verdict on the delivery; only that one counts."""
        first, self._claimed = not self._claimed, True
        return first

    @property
    def meta(self) -> Mapping[str, Any]:
        """All properties, as they were published."""
        if self._meta is None:
            self._meta = read_meta(self._headers)
        return self._meta

    @property
    def redelivered(self) -> bool:
        return self._again or self.count > 1

    @property
    def exchange(self) -> str:
        return text_of(self.meta, "exchange") or ""

    @property
    def routing_key(self) -> str:
        return text_of(self.meta, "routing_key") or ""

    @property
    def type(self) -> str | None:
        return text_of(self.meta, "type")

    @property
    def correlation_id(self) -> str | None:
        return text_of(self.meta, "correlation_id")

    @property
    def message_id(self) -> str | None:
        return text_of(self.meta, "message_id")

    @property
    def headers(self) -> Mapping[str, object]:
        """Those of the publisher, and the broker's count of deliveries before this one."""
        headers = headers_of(self.meta)
        if self.count > 1:
            headers["x-delivery-count"] = self.count - 1
        return headers

    def header(self, name: str) -> object:
        return self.headers.get(name)


Decision = tuple[JetStreamDelivery, bytes]
"""A delivery, and the answer to the server about it."""


class JetStreamSubscription:
    """One subscription to a queue; a new connection has its own."""

    def __init__(
        self,
        connection: NatsConnection,
        queue: str,
        *,
        prefetch: int,
        arrived: Callable[[JetStreamDelivery], bool],
    ) -> None:
        self.connection = connection
        self.ready: deque[JetStreamDelivery] = deque()
        """Deliveries that arrived and that `batch` has not returned yet, oldest first."""
        self.over = False
        """The subscription has ended: unsettled messages are delivered again."""
        self.unsettled: Sequence[JetStreamDelivery] = ()
        """The deliveries that it held when its connection was lost, in order."""
        self._queue = queue
        self._prefetch = prefetch
        self._arrived = arrived
        self._held: dict[int, JetStreamDelivery] = {}
        self._again: frozenset[int] = frozenset()
        """Messages that the lost connection held: a killed server may have forgotten that it delivered them."""
        self._puller = Puller(
            connection, queue, prefetch=prefetch, room=lambda: prefetch - len(self._held), arrived=self._take
        )

    @property
    def started(self) -> bool:
        """Whether the server has been asked for messages, and still brings them."""
        return self._puller.started and not self.over

    def holds(self, delivery: JetStreamDelivery) -> bool:
        """Whether the delivery belongs to this subscription, and is not settled."""
        return not self.over and self._held.get(delivery.tag) is delivery

    async def run(self, ack_wait_seconds: float, left_over: Sequence[JetStreamDelivery]) -> None:
        """Take messages until cancelled, and then return the unsettled ones in order.

        `left_over` are the messages that a lost connection held. Raises NatsLost and SubscriptionEnded.
        """
        # Returned, these are delivered again at once, not only after AckWait. They are never acked: if the
        # server lost data, the same number may now be another message.
        self._again = frozenset(delivery.tag for delivery in left_over)
        await self._write([(delivery, NAK) for delivery in left_over])
        presence = await answer_presence(
            self.connection,
            self._queue,
            self._held.keys,
            lease_seconds=partial(self._lease_seconds, ack_wait_seconds),
        )
        try:
            async with background({"broker-renew": self._renew(ack_wait_seconds / RENEWALS)}):
                await self._puller.run()
        finally:
            self.over = True
            self.ready.clear()
            self.unsettled = [self._held[tag] for tag in sorted(self._held)]
            self._held.clear()
            if not self.connection.ended.done():
                await self._part()
                self.unsettled = ()
                with suppress(nats.errors.Error):
                    await presence.unsubscribe()

    async def settle(self, decisions: Sequence[Decision]) -> None:
        """Return when the server has answered all; never raises when it does not answer.

        An ack without an answer proves only that it was sent: a killed server forgets it.
        """
        if self.over or not decisions:
            return
        answered = await self._write(decisions)
        for delivery in answered:
            if self._held.get(delivery.tag) is delivery:
                del self._held[delivery.tag]
        self._puller.wake()

    async def _write(self, decisions: Sequence[Decision]) -> list[JetStreamDelivery]:
        """Send the answers to the server, and wait; return the deliveries that are settled."""
        acks: dict[asyncio.Future[Msg], JetStreamDelivery] = {}
        try:
            for delivery, word in decisions:
                acks[await self.connection.ask(delivery.ack_subject, word)] = delivery
        except NatsLost:
            pass
        if not acks:
            return []
        _, late = await asyncio.wait(acks, timeout=SETTLE_SECONDS)
        for answer in late:
            answer.cancel()
        for refused in {str(each): each for each in (_denied(answer) for answer in acks) if each}.values():
            refused.log(CONSUMING)
        # Without an answer a delivery is not renewed: the server delivers it again after AckWait.
        return [
            delivery
            for answer, delivery in acks.items()
            if answer.cancelled() or not isinstance(answer.exception(), NatsLost)
        ]

    def _take(self, msg: Msg) -> None:
        delivery = JetStreamDelivery(msg, again=self._again)
        self._held[delivery.tag] = delivery
        if self._arrived(delivery):
            self.ready.append(delivery)

    def _lease_seconds(self, ack_wait_seconds: float) -> float | None:
        """Return how long the first AckWait of the held deliveries still lasts; None without any."""
        if not self._held:
            return None
        renewed_at = min(delivery.renewed_at for delivery in self._held.values())
        return max(0.0, renewed_at + ack_wait_seconds - time.monotonic())

    async def _renew(self, every_seconds: float) -> None:
        """Renew the AckWait of the held deliveries."""
        while True:
            await asyncio.sleep(every_seconds)
            for delivery in list(self._held.values()):
                try:
                    await self.connection.client.publish(delivery.ack_subject, PROGRESS)
                except nats.errors.Error:
                    return
                delivery.renewed_at = time.monotonic()

    async def _part(self) -> None:
        try:
            async with asyncio.timeout(PARTING_SECONDS):
                await self._write([(delivery, NAK) for delivery in self.unsettled])
        except TimeoutError:
            # Then the server delivers them again after AckWait.
            return


def _denied(answer: "asyncio.Future[Msg]") -> NatsDenied | None:
    """Return why the user may not settle; None where it may."""
    error = None if answer.cancelled() or not answer.done() else answer.exception()
    return error if isinstance(error, NatsDenied) else None
