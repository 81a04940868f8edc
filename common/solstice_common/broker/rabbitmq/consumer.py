"""Consumes one queue of RabbitMQ, and renews its subscription whenever it ends."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Protocol, cast

from pamqp import commands as spec
from pamqp.common import FieldTable

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict, retry_seconds
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.refused_messages import publish_refused
from solstice_common.broker.links.resubscribing import Resubscriber
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivery, Published
from solstice_common.broker.rabbitmq.acks import AckAction
from solstice_common.broker.rabbitmq.properties import RESERVED_BYTES, fitting_headers, of_properties
from solstice_common.broker.rabbitmq.publisher import Envelope
from solstice_common.broker.rabbitmq.subscription import ReceivedDelivery, Subscription
from solstice_common.broker.rabbitmq.wire import LEAST_FRAME_BYTES, Wire

Decisions = dict[Subscription, dict[int, AckAction]]


class ConsumerBroker(Protocol):
    """What a consumer needs from its broker."""

    @property
    def name(self) -> str: ...

    @property
    def declared(self) -> DeclaredTopologies[Wire]: ...

    async def publish_envelopes(self, envelopes: Sequence[Envelope]) -> Sequence[Published]: ...


class RabbitMQConsumer:
    """See `protocol.Consumer`; `run` must be running."""

    def __init__(
        self,
        link: SupervisedLink[Wire],
        broker: ConsumerBroker,
        queue: str,
        *,
        prefetch: int,
        rng: random.Random,
    ) -> None:
        self._link = link
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._rng = rng
        self._resubscriber = Resubscriber(link, broker.declared, queue, rng=rng)
        self._subscription = Subscription(self._resubscriber.arrived.set)

    @property
    def subscribed(self) -> bool:
        """See `protocol.Consumer.subscribed`."""
        return self._subscription.started and not self._subscription.over

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`."""
        return await self._resubscriber.batch(lambda: self._subscription.ready, self._prefetch)

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        """See `protocol.Consumer.settle`.

        A retried delivery is held for a moment, longer each time, and then requeued by `basic.reject`: the broker
        counts those toward the queue's delivery limit (20 by default since 4.0), which a database that is away for
        some minutes must not exhaust.
        """
        decisions: Decisions = {}
        refused: list[tuple[ReceivedDelivery, Refuse]] = []
        for delivery, verdict in verdicts:
            if not isinstance(delivery, ReceivedDelivery):
                raise TypeError(f"this delivery is not one of RabbitMQ's: {delivery!r}")
            if not delivery.claim():
                continue
            match verdict:
                case Ack():
                    decisions.setdefault(delivery.subscription, {})[delivery.tag] = AckAction.ACK
                case Retry():
                    self._requeue_later(delivery)
                case Refuse():
                    refused.append((delivery, verdict))
        await _settle(decisions)
        if refused:
            await _settle(await self._dead_letter(refused))

    async def run(self) -> None:
        """Keep a subscription through every loss of link, channel or queue."""
        await self._resubscriber.run(self._subscribe)

    async def _subscribe(self, wire: Wire) -> None:
        self._subscription = Subscription(self._resubscriber.arrived.set)
        await self._subscription.run(wire, self._queue, prefetch=self._prefetch)

    def _requeue_later(self, delivery: ReceivedDelivery) -> None:
        # The publisher put a count on a first delivery.
        count = delivery.header("x-delivery-count") if delivery.redelivered else 0
        pause = retry_seconds(count if isinstance(count, int) else 0, self._rng)
        asyncio.get_running_loop().call_later(
            pause, delivery.subscription.settle_soon, {delivery.tag: AckAction.REQUEUE}
        )

    async def _dead_letter(self, refused: Sequence[tuple[ReceivedDelivery, Refuse]]) -> Decisions:
        """Publish refused messages to the dead-letter exchange; return the ack action of each."""
        # The broker delivers this message again anyway; it is refused then, once.
        refused = [(delivery, why) for delivery, why in refused if not delivery.subscription.over]
        # The broker has the body, and we do not: it dead-letters the message itself.
        decisions: Decisions = {}
        for delivery, _ in refused:
            if delivery.omitted_bytes:
                decisions.setdefault(delivery.subscription, {})[delivery.tag] = AckAction.DROP
        refused = [(delivery, why) for delivery, why in refused if not delivery.omitted_bytes]
        confirmed = await publish_refused(
            refused,
            queue=self._queue,
            exchange=self._broker.declared.dead_letter_exchange(self._queue),
            write=self._dead_letter_envelope,
            publish=self._broker.publish_envelopes,
        )
        for (delivery, _), is_confirmed in zip(refused, confirmed, strict=True):
            # The broker dead-letters a message that we reject: without our reason, but it is not lost.
            action = AckAction.ACK if is_confirmed else AckAction.DROP
            decisions.setdefault(delivery.subscription, {})[delivery.tag] = action
        return decisions

    def _dead_letter_envelope(self, exchange: str, delivery: ReceivedDelivery, why: Refuse) -> Envelope:
        properties_sent, wire = delivery.properties, self._link.connection
        headers = fitting_headers(
            refusal_headers(delivery, why, queue=self._queue, by=self._broker.name, at=datetime.now(UTC)),
            (LEAST_FRAME_BYTES if wire is None else wire.header_bytes) - RESERVED_BYTES,
        )
        return Envelope(
            exchange=exchange,
            routing_key=delivery.routing_key,
            body=delivery.body,
            # All properties except those by which it would expire, or be refused because of another user's
            # name.
            properties=of_properties(
                spec.Basic.Properties(
                    content_type=properties_sent.content_type,
                    content_encoding=properties_sent.content_encoding,
                    headers=cast("FieldTable", headers),  # they arrived as such a table
                    delivery_mode=2,
                    priority=properties_sent.priority,
                    correlation_id=properties_sent.correlation_id,
                    reply_to=properties_sent.reply_to,
                    timestamp=properties_sent.timestamp,
                    message_type=properties_sent.message_type,
                    app_id=properties_sent.app_id,
                )
            ),
        )


async def _settle(decisions: Decisions) -> None:
    for subscription, settlements in decisions.items():
        await subscription.settle(settlements)
