"""Consumes one queue of RabbitMQ, and renews its subscription whenever it ends."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, cast

import structlog
from pamqp import commands as spec
from pamqp.common import FieldTable

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivery, Published, PublishStatus
from solstice_common.broker.rabbitmq.acks import AckAction
from solstice_common.broker.rabbitmq.dead_letters import RESERVED_BYTES, fitting
from solstice_common.broker.rabbitmq.properties import of_properties
from solstice_common.broker.rabbitmq.publisher import Envelope
from solstice_common.broker.rabbitmq.subscription import QueueMissing, ReceivedDelivery, Subscription
from solstice_common.broker.rabbitmq.wire import LEAST_FRAME_BYTES, LinkLost, Wire
from solstice_common.errors import TopologyMismatch
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

RESUBSCRIBE_BASE_SECONDS: Final = 0.2
RESUBSCRIBE_CAP_SECONDS: Final = 5.0
REDECLARE_SECONDS: Final = 3.0
"""Seconds before a missing queue is declared again.

An operator who replaces it by another kind has that time.
"""
RETRY_BASE_SECONDS: Final = 0.2
RETRY_CAP_SECONDS: Final = 60.0

UNWRITABLE: Final = Published(PublishStatus.REJECTED, "the dead letter could not be written")

Decisions = dict[Subscription, dict[int, AckAction]]

log = structlog.get_logger(__name__)


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
        self._arrived = asyncio.Event()
        self._subscription = Subscription(self._arrived.set)
        self._mismatch: TopologyMismatch | None = None

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`."""
        while not self._subscription.ready:
            if self._mismatch is not None:
                raise self._mismatch
            self._arrived.clear()
            await self._arrived.wait()
        ready = self._subscription.ready
        return [ready.popleft() for _ in range(min(len(ready), self._prefetch))]

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
        failures, missing_since = 0, None
        while True:
            wire = await self._link.connected()
            began = time.monotonic()
            try:
                self._mismatch = self._broker.declared.mismatch(self._queue)
                if self._mismatch is None:
                    await self._subscribe(wire)
                else:
                    self._arrived.set()  # for `batch` to raise it
            except QueueMissing:
                missing_since = missing_since or began
                log.warning(LogEvent.QUEUE_MISSING, queue=self._queue)
                if began - missing_since >= REDECLARE_SECONDS:
                    missing_since = None
                    await self._redeclare(wire)
            except LinkLost as lost:
                missing_since = None
                log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(lost))
            failures = 0 if time.monotonic() - began > RESUBSCRIBE_CAP_SECONDS else failures + 1
            pause = backoff_seconds(
                failures,
                rng=self._rng,
                base_seconds=RESUBSCRIBE_BASE_SECONDS,
                cap_seconds=RESUBSCRIBE_CAP_SECONDS,
            )
            await asyncio.sleep(pause)

    async def _subscribe(self, wire: Wire) -> None:
        self._subscription = Subscription(self._arrived.set)
        await self._subscription.run(wire, self._queue, prefetch=self._prefetch)

    async def _redeclare(self, wire: Wire) -> None:
        try:
            await self._broker.declared.again(wire)
        except LinkLost as lost:
            log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(lost))

    def _requeue_later(self, delivery: ReceivedDelivery) -> None:
        # The publisher put a count on a first delivery.
        count = delivery.headers.get("x-delivery-count") if delivery.redelivered else 0
        pause = backoff_seconds(
            count if isinstance(count, int) else 0,
            rng=self._rng,
            base_seconds=RETRY_BASE_SECONDS,
            cap_seconds=RETRY_CAP_SECONDS,
        )
        asyncio.get_running_loop().call_later(
            pause, delivery.subscription.settle_soon, {delivery.tag: AckAction.REQUEUE}
        )

    async def _dead_letter(self, refused: Sequence[tuple[ReceivedDelivery, Refuse]]) -> Decisions:
        """Publish refused messages to the dead-letter exchange; return the ack action of each."""
        # The broker delivers this message again anyway; it is refused then, once.
        refused = [(delivery, why) for delivery, why in refused if not delivery.subscription.over]
        exchange = self._broker.declared.dead_letter_exchange(self._queue)
        outcomes: Sequence[Published | None] = [None] * len(refused)
        if exchange is not None:
            envelopes = [self._envelope_or_none(exchange, delivery, why) for delivery, why in refused]
            published = iter(
                await self._broker.publish_envelopes([each for each in envelopes if each is not None])
            )
            outcomes = [UNWRITABLE if each is None else next(published) for each in envelopes]
        decisions: Decisions = {}
        for (delivery, why), outcome in zip(refused, outcomes, strict=True):
            confirmed = outcome is not None and outcome.confirmed
            if not confirmed:
                log.error(
                    LogEvent.DEAD_LETTER_FAILED,
                    queue=self._queue,
                    request_id=delivery.correlation_id,
                    reason=why.reason,
                    detail="no dead-letter exchange was declared" if outcome is None else outcome.detail,
                )
            # The broker dead-letters a message that we reject: without our reason, but it is not lost.
            settlement = AckAction.ACK if confirmed else AckAction.DROP
            decisions.setdefault(delivery.subscription, {})[delivery.tag] = settlement
        return decisions

    def _envelope_or_none(self, exchange: str, delivery: ReceivedDelivery, why: Refuse) -> Envelope | None:
        """The dead letter; None when a bug prevents it."""
        try:
            return self._dead_letter_envelope(exchange, delivery, why)
        except Exception:
            log.exception(LogEvent.DEAD_LETTER_FAILED, queue=self._queue, reason=why.reason)
            return None

    def _dead_letter_envelope(self, exchange: str, delivery: ReceivedDelivery, why: Refuse) -> Envelope:
        properties_sent, wire = delivery.properties, self._link.connection
        headers = fitting(
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
