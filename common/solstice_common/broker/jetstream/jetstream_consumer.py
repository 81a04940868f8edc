"""Consumes one queue of JetStream, and subscribes again after every loss."""

import asyncio
import json
import random
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog
from nats.js.errors import APIError, NotFoundError

from solstice_common.broker.delivery import MAX_DELIVERIES, Ack, Refuse, Retry, Verdict, retry_seconds
from solstice_common.broker.dropping import OnDropped, drop
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.jetstream.jetstream_names import DURABLE, stream_of
from solstice_common.broker.jetstream.jetstream_streams import ensure_consumer, unreadable_messages
from solstice_common.broker.jetstream.jetstream_subscription import (
    ACK,
    NAK,
    Decision,
    JetStreamDelivery,
    JetStreamSubscription,
)
from solstice_common.broker.jetstream.nats_connection import (
    NatsConnection,
    NatsDenied,
    NatsLost,
    described,
)
from solstice_common.broker.jetstream.nats_records import NatsRecord, dead_letter_record
from solstice_common.broker.links.background import background
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.missing_rights import CONSUMING
from solstice_common.broker.links.refused_messages import publish_refused
from solstice_common.broker.links.resubscribing import QueueMissing, Resubscriber, SubscriptionEnded
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivered, Delivery, Published
from solstice_common.runtime.public_interfaces import public_only
from solstice_common.telemetry.log_events import LogEvent

POISON: Final = Refuse(
    reason="too_many_deliveries",
    detail=f"it was delivered {MAX_DELIVERIES} times and never settled: it may end the process that takes it",
)
UNREADABLE: Final = Refuse(
    reason="unreadable_head", detail="its head is no head of NATS: its properties were left out"
)

log = structlog.get_logger(__name__)


class JetStreamConsumerBroker(Protocol):
    """What a consumer needs from its broker."""

    @property
    def name(self) -> str: ...

    @property
    def ack_wait_seconds(self) -> float: ...

    @property
    def on_dropped(self) -> OnDropped | None:
        """Set where poison messages are dropped instead of becoming dead letters."""
        ...

    @property
    def declared(self) -> DeclaredTopologies[NatsConnection]: ...

    async def publish_records(self, records: Sequence[NatsRecord]) -> Sequence[Published]: ...


class JetStreamConsumer:
    """See `protocol.Consumer`; `run` must be running."""

    def __init__(
        self,
        link: SupervisedLink[NatsConnection],
        broker: JetStreamConsumerBroker,
        queue: str,
        *,
        prefetch: int,
        rng: random.Random,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._rng = rng
        self._resubscriber = Resubscriber(link, broker.declared, queue, rng=rng)
        self._subscription: JetStreamSubscription | None = None
        self._left_over: Sequence[JetStreamDelivery] = ()
        self._poison: asyncio.Queue[JetStreamDelivery] = asyncio.Queue()

    @property
    def subscribed(self) -> bool:
        """See `protocol.Consumer.subscribed`."""
        return self._subscription is not None and self._subscription.started

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`."""
        return await self._resubscriber.batch(self._ready, self._prefetch)

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        """See `protocol.Consumer.settle`. A retried delivery waits for its backoff at the server."""
        subscription = self._subscription
        decisions: list[Decision] = []
        refused: list[tuple[JetStreamDelivery, Refuse]] = []
        for delivery, verdict in verdicts:
            if not isinstance(delivery, JetStreamDelivery):
                raise TypeError(f"this delivery is not one of NATS: {delivery!r}")
            if subscription is None or not subscription.holds(delivery) or not delivery.claim():
                continue
            match verdict:
                case Ack():
                    decisions.append((delivery, ACK))
                case Retry():
                    decisions.append((delivery, self._later(delivery)))
                case Refuse():
                    refused.append((delivery, verdict))
        if subscription is not None:
            await subscription.settle(decisions)
            await self._refuse(subscription, refused)

    async def run(self) -> None:
        """Keep a subscription through every loss of link, stream or consumer."""
        async with background({f"broker-poison-{self._queue}": self._refuse_poison()}):
            await self._resubscriber.run(self._subscribe)

    def _ready(self) -> deque[JetStreamDelivery]:
        return deque() if self._subscription is None else self._subscription.ready

    async def _subscribe(self, connection: NatsConnection) -> None:
        try:
            ack_wait = await ensure_consumer(
                connection, self._queue, ack_wait_seconds=self._broker.ack_wait_seconds
            )
            if public_only("nats"):
                await self._refuse_unreadable(connection)
            await self._stay(connection, ack_wait)
        except NotFoundError:
            raise QueueMissing(self._queue) from None
        except APIError as error:
            raise SubscriptionEnded(described(error)) from None

    async def _stay(self, connection: NatsConnection, ack_wait: float) -> None:
        left_over, self._left_over = self._left_over, ()
        subscription = self._subscription = JetStreamSubscription(
            connection, self._queue, prefetch=self._prefetch, arrived=self._is_for_batch
        )
        try:
            await subscription.run(ack_wait, left_over)
        finally:
            self._left_over = subscription.unsettled

    def _is_for_batch(self, delivery: JetStreamDelivery) -> bool:
        """Whether a delivery goes to the caller; a poison message does not."""
        if (
            delivery.count > MAX_DELIVERIES
            and self._broker.declared.dead_letter_exchange(self._queue) is not None
        ):
            self._poison.put_nowait(delivery)
            return False
        self._resubscriber.arrived.set()
        return True

    async def _refuse_poison(self) -> None:
        while True:
            delivery = await self._poison.get()
            verdict: Verdict = POISON
            if self._broker.on_dropped is not None:
                drop(self._broker.on_dropped, self._queue, delivery.correlation_id, POISON.reason)
                verdict = Ack()
            await self.settle([(delivery, verdict)])

    def _later(self, delivery: JetStreamDelivery) -> bytes:
        """Return the answer that returns a delivery to the server until its backoff ends."""
        pause = retry_seconds(delivery.count - 1, self._rng)
        return NAK + b" " + json.dumps({"delay": int(pause * 1e9)}).encode()

    async def _dead_letter(
        self, refused: Sequence[tuple[JetStreamDelivery, Refuse]], body: bytes | None = None
    ) -> list[Decision]:
        """Publish refused messages to the dead-letter exchange; return the answer for each.

        `body` is that of a message whose body was omitted.
        """
        confirmed = await publish_refused(
            refused,
            queue=self._queue,
            exchange=self._broker.declared.dead_letter_exchange(self._queue),
            write=lambda exchange, delivery, why: self._dead_letter_record(exchange, delivery, why, body),
            publish=self._broker.publish_records,
        )
        # JetStream dead-letters nothing by itself: it delivers the message again, and we refuse it again.
        return [
            (delivery, ACK if is_confirmed else self._later(delivery))
            for (delivery, _), is_confirmed in zip(refused, confirmed, strict=True)
        ]

    async def _refuse(
        self, subscription: JetStreamSubscription, refused: Sequence[tuple[JetStreamDelivery, Refuse]]
    ) -> None:
        if held := [each for each in refused if not each[0].omitted_bytes]:
            await subscription.settle(await self._dead_letter(held))
        # One by one, since these are large.
        for delivery, why in refused:
            if delivery.omitted_bytes:
                await subscription.settle([await self._large_dead_letter(subscription, delivery, why)])

    async def _large_dead_letter(
        self, subscription: JetStreamSubscription, delivery: JetStreamDelivery, why: Refuse
    ) -> Decision:
        """Make a dead letter of an omitted body, which the server still has."""
        connection = subscription.connection
        try:
            stored = await connection.call(
                connection.jetstream.get_msg(stream_of(self._queue), seq=delivery.tag)
            )
        except NotFoundError:
            return delivery, ACK  # removed by hand meanwhile
        except (NatsLost, APIError) as failed:
            if isinstance(failed, NatsDenied):
                failed.log(CONSUMING)
            # It stays; the next delivery tries again.
            return delivery, self._later(delivery)
        (decision,) = await self._dead_letter([(delivery, why)], body=stored.data or b"")
        return decision

    async def _refuse_unreadable(self, connection: NatsConnection) -> None:
        """Turn messages with unreadable heads into dead letters, without receiving them.

        Such a head ends what nats-py reads of a connection, again after each new one.
        """
        for sequence, body in (await unreadable_messages(connection, self._queue)).items():
            log.warning(LogEvent.HEAD_UNREADABLE, queue=self._queue, sequence=sequence)
            if await self._refuse_unreceived(Delivered(body=body, tag=sequence), UNREADABLE):
                await self._ack_unreceived(connection, sequence)

    async def _ack_unreceived(self, connection: NatsConnection, sequence: int) -> None:
        """Acknowledge a message by its sequence in the stream.

        The subject of its answer came with the delivery. Of the numbers in it the server heeds the sequence alone.
        Source: docs.nats.io/reference/reference-protocols/nats_api_reference.
        """
        subject = f"$JS.ACK.{stream_of(self._queue)}.{DURABLE}.1.{sequence}.1.0.0"
        await connection.call(await connection.ask(subject, ACK))

    async def _refuse_unreceived(self, message: Delivered, why: Refuse) -> bool:
        """Make the dead letter of a message; return whether it is safe."""
        if self._broker.on_dropped is not None:
            drop(self._broker.on_dropped, self._queue, None, why.reason)
            return True
        (is_confirmed,) = await publish_refused(
            [(message, why)],
            queue=self._queue,
            exchange=self._broker.declared.dead_letter_exchange(self._queue),
            write=lambda exchange, each, refusal: dead_letter_record(
                exchange, "", each.body, {}, self._refusal_headers(each, refusal)
            ),
            publish=self._broker.publish_records,
        )
        return is_confirmed

    def _refusal_headers(self, delivery: Delivery, why: Refuse) -> dict[str, object]:
        return refusal_headers(delivery, why, queue=self._queue, by=self._broker.name, at=datetime.now(UTC))

    def _dead_letter_record(
        self, exchange: str, delivery: JetStreamDelivery, why: Refuse, body: bytes | None
    ) -> NatsRecord:
        headers = self._refusal_headers(delivery, why)
        held = delivery.body if body is None else body
        return dead_letter_record(exchange, delivery.routing_key, held, delivery.meta, headers)
