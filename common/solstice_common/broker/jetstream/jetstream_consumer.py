"""Consumes one queue of JetStream, and subscribes again after every loss."""

import asyncio
import json
import random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog
from nats.js.errors import APIError, NotFoundError

from solstice_common.broker.delivery import Ack, Refuse, Retry, Verdict
from solstice_common.broker.dropping import OnDropped
from solstice_common.broker.headers import refusal_headers
from solstice_common.broker.jetstream.jetstream_pull import PullEnded
from solstice_common.broker.jetstream.jetstream_streams import ensure_consumer
from solstice_common.broker.jetstream.jetstream_subscription import (
    ACK,
    NAK,
    Decision,
    JetStreamDelivery,
    JetStreamSubscription,
)
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsLost, described
from solstice_common.broker.jetstream.nats_records import NatsRecord, dead_letter_record
from solstice_common.broker.links.background import background
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.supervised_link import SupervisedLink
from solstice_common.broker.protocol import Delivery, Published, PublishStatus
from solstice_common.errors import TopologyMismatch
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

RESUBSCRIBE_BASE_SECONDS: Final = 0.2
RESUBSCRIBE_CAP_SECONDS: Final = 5.0
REDECLARE_SECONDS: Final = 3.0
"""Seconds before a vanished queue is declared again, as on RabbitMQ."""
RETRY_BASE_SECONDS: Final = 0.2
RETRY_CAP_SECONDS: Final = 60.0
MAX_DELIVERIES: Final = 20
"""After so many deliveries a message is poison, as with the default limit of RabbitMQ."""
POISON: Final = Refuse(
    reason="too_many_deliveries",
    detail=f"it was delivered {MAX_DELIVERIES} times and never settled: it may end the process that takes it",
)
UNWRITABLE: Final = Published(PublishStatus.REJECTED, "the dead letter could not be written")

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
        self._link = link
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._rng = rng
        self._arrived = asyncio.Event()
        self._subscription: JetStreamSubscription | None = None
        self._left_over: Sequence[JetStreamDelivery] = ()
        self._mismatch: TopologyMismatch | None = None
        self._poison: asyncio.Queue[JetStreamDelivery] = asyncio.Queue()

    async def batch(self) -> Sequence[Delivery]:
        """See `protocol.Consumer.batch`."""
        while self._subscription is None or not self._subscription.ready:
            if self._mismatch is not None:
                raise self._mismatch
            self._arrived.clear()
            await self._arrived.wait()
        ready = self._subscription.ready
        return [ready.popleft() for _ in range(min(len(ready), self._prefetch))]

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
            if refused:
                await subscription.settle(await self._dead_letter(refused))

    async def run(self) -> None:
        """Keep a subscription through every loss of link, stream or consumer."""
        async with background({f"broker-poison-{self._queue}": self._refuse_poison()}):
            await self._subscribe_again()

    async def _subscribe_again(self) -> None:
        failures, missing_since = 0, None
        while True:
            connection = await self._link.connected()
            began = time.monotonic()
            try:
                self._mismatch = self._broker.declared.mismatch(self._queue)
                if self._mismatch is None:
                    await self._subscribe(connection)
            except TopologyMismatch as mismatch:
                self._mismatch = mismatch
            except NotFoundError:
                missing_since = missing_since or began
                log.warning(LogEvent.QUEUE_MISSING, queue=self._queue)
                if began - missing_since >= REDECLARE_SECONDS:
                    missing_since = None
                    await self._redeclare(connection)
            except (NatsLost, PullEnded, APIError) as lost:
                missing_since = None
                log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=described(lost))
            if self._mismatch is not None:
                self._arrived.set()  # for `batch` to raise it
            failures = 0 if time.monotonic() - began > RESUBSCRIBE_CAP_SECONDS else failures + 1
            pause = backoff_seconds(
                failures,
                rng=self._rng,
                base_seconds=RESUBSCRIBE_BASE_SECONDS,
                cap_seconds=RESUBSCRIBE_CAP_SECONDS,
            )
            await asyncio.sleep(pause)

    async def _subscribe(self, connection: NatsConnection) -> None:
        ack_wait = await ensure_consumer(
            connection, self._queue, ack_wait_seconds=self._broker.ack_wait_seconds
        )
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
        self._arrived.set()
        return True

    async def _refuse_poison(self) -> None:
        while True:
            delivery = await self._poison.get()
            verdict: Verdict = POISON
            if self._broker.on_dropped is not None:
                log.warning(
                    LogEvent.DEAD_LETTER_DROPPED,
                    queue=self._queue,
                    request_id=delivery.correlation_id,
                    reason=POISON.reason,
                )
                self._broker.on_dropped(POISON.reason)
                verdict = Ack()
            await self.settle([(delivery, verdict)])

    async def _redeclare(self, connection: NatsConnection) -> None:
        try:
            await self._broker.declared.again(connection)
        except NatsLost as lost:
            log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(lost))

    def _later(self, delivery: JetStreamDelivery) -> bytes:
        """The answer that returns a delivery to the server until its backoff ends."""
        pause = backoff_seconds(
            delivery.count - 1,
            rng=self._rng,
            base_seconds=RETRY_BASE_SECONDS,
            cap_seconds=RETRY_CAP_SECONDS,
        )
        return NAK + b" " + json.dumps({"delay": int(pause * 1e9)}).encode()

    async def _dead_letter(self, refused: Sequence[tuple[JetStreamDelivery, Refuse]]) -> list[Decision]:
        """Publish refused messages to the dead-letter exchange; return the answer for each."""
        exchange = self._broker.declared.dead_letter_exchange(self._queue)
        outcomes: Sequence[Published | None] = [None] * len(refused)
        if exchange is not None:
            records = [self._record_or_none(exchange, delivery, why) for delivery, why in refused]
            published = iter(
                await self._broker.publish_records([each for each in records if each is not None])
            )
            outcomes = [UNWRITABLE if each is None else next(published) for each in records]
        decisions: list[Decision] = []
        for (delivery, why), outcome in zip(refused, outcomes, strict=True):
            if outcome is not None and outcome.confirmed:
                decisions.append((delivery, ACK))
                continue
            log.error(
                LogEvent.DEAD_LETTER_FAILED,
                queue=self._queue,
                request_id=delivery.correlation_id,
                reason=why.reason,
                detail="no dead-letter exchange was declared" if outcome is None else outcome.detail,
            )
            # JetStream dead-letters nothing by itself: it delivers the message again, and we refuse it again.
            decisions.append((delivery, self._later(delivery)))
        return decisions

    def _record_or_none(self, exchange: str, delivery: JetStreamDelivery, why: Refuse) -> NatsRecord | None:
        """The dead letter; None when a bug prevents it."""
        try:
            headers = refusal_headers(
                delivery, why, queue=self._queue, by=self._broker.name, at=datetime.now(UTC)
            )
            return dead_letter_record(exchange, delivery.routing_key, delivery.body, delivery.meta, headers)
        except Exception:
            log.exception(LogEvent.DEAD_LETTER_FAILED, queue=self._queue, reason=why.reason)
            return None
