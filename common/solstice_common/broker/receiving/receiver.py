"""Takes the messages of a route, stores them, and only then acks them."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Verdict, unreadable
from solstice_common.broker.protocol import Broker, Consumer, Delivery
from solstice_common.broker.receiving.weighted_consumer import consume_weighted
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent
from solstice_common.topology import Route, Topology

log = structlog.get_logger(__name__)

M = TypeVar("M")
R = TypeVar("R")

BATCHES_AT_ONCE: Final = 4
"""While one batch is written to disk, the next ones are read and validated."""
CONNECT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0
LAST_STORE_RETRY_SECONDS: Final = 2.0
"""The longest pause while the store is unavailable, so that its return is noticed soon."""


class MessageHandler(Protocol[M, R]):
    """A handler of the messages of one queue: `M` is a message, `R` its result."""

    def examiner(self, batch: Sequence[Delivery]) -> Callable[[Delivery], M | Refuse]:
        """Return what examines the deliveries of this batch, one after the other.

        It returns the message, or the refusal of an invalid delivery. What it learns of all of them beforehand may not
        fail for any content: the process would end, and get the batch again.
        """
        ...

    async def save(self, messages: Sequence[M], deliveries: Sequence[Delivery]) -> Sequence[R]:
        """Store the messages of these deliveries durably, and return a result for each.

        Raises only StoreUnavailable, and may be called again with the same messages.
        """
        ...

    def on_saved(self, messages: Sequence[M], results: Sequence[R]) -> None:
        """Record messages that are stored and will be acked."""
        ...

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        """Record a refused delivery, which becomes a dead letter."""
        ...

    def on_error(self, message: M | None, error: Exception, refusal: Refuse) -> None:
        """Record a delivery that triggered a bug, and becomes a dead letter.

        `message` is None when the delivery could not even be read.
        """
        ...


class Gate(Protocol):
    """A condition under which messages may be taken."""

    @property
    def paused(self) -> bool:
        """Whether no message may be taken."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait until messages may be taken."""
        ...


class Receiver(Generic[M, R]):
    """The consumer of one route.

    Where its priority classes have their own queues, it takes from all of them, in weighted order.

    While the store is unavailable, deliveries stay unacked at the broker.

    At most `at_once` batches are stored at a time. Without a gate, messages may always be taken.
    """

    def __init__(
        self,
        handler: MessageHandler[M, R],
        *,
        broker: Broker,
        rng: random.Random,
        gate: Gate | None = None,
        at_once: int = BATCHES_AT_ONCE,
    ) -> None:
        self._handler = handler
        self._broker = broker
        self._rng = rng
        self._gate = gate
        self._at_once = at_once
        self._paused_since: float | None = None
        self._undeclared = "the queues are not declared yet"
        self._consumer: Consumer | None = None
        self._queue = ""
        self.under_way = 0
        """How many deliveries are being stored or settled."""

    @property
    def problem(self) -> str | None:
        """Why no message can arrive; None when one can, or the gate is closed."""
        if self._undeclared:
            return self._undeclared
        if self._consumer is None and self._gate is not None and self._gate.paused:
            return None
        if self._consumer is None or not self._consumer.subscribed:
            return f"the queue {self._queue} is not consumed"
        return None

    async def run(self, route: Route, topology: Topology, *, prefetch: int) -> None:
        """Take messages until cancelled.

        The broker then delivers unacked messages again; those that were stored already are duplicates.

        Raises TopologyMismatch.
        """
        self._queue = route.queue
        await self._declare(topology)
        while True:
            if self._gate is not None:
                await self._gate.wait_for_capacity()
            # The consumer is closed, not only unread: RabbitMQ closes the channel of a consumer that holds a
            # delivery for half an hour.
            async with (
                consume_weighted(self._broker, route.weights, prefetch=prefetch) as consumer,
                asyncio.TaskGroup() as tasks,
            ):
                reading = asyncio.Lock()
                self._consumer = consumer
                taking = [
                    tasks.create_task(
                        self._take_while_open(consumer, reading), name=f"intake of {route.queue}"
                    )
                    for _ in range(self._at_once)
                ]
                try:
                    # In the group's body: a failure after it would leave this task half cancelled, and the
                    # next timeout that expires would end it silently before Python 3.11.3
                    # (github.com/python/cpython/issues/102780).
                    await asyncio.wait(taking)
                finally:
                    self._consumer = None

    async def _take_while_open(self, consumer: Consumer, reading: asyncio.Lock) -> None:
        while True:
            async with reading:
                if self._gate is not None and self._gate.paused:
                    return
                batch = await consumer.batch()
                self.under_way += len(batch)
            try:
                await self._take(consumer, batch)
            finally:
                self.under_way -= len(batch)

    async def _take(self, consumer: Consumer, batch: Sequence[Delivery]) -> None:
        """Store the messages of one batch and settle all its deliveries, refused ones first."""
        verdicts: list[tuple[Delivery, Verdict]] = []
        messages: list[tuple[Delivery, M]] = []
        examine = self._handler.examiner(batch)
        for delivery in batch:
            examined = self._examined(examine, delivery)
            if isinstance(examined, Refuse):
                verdicts.append((delivery, examined))
            else:
                messages.append((delivery, examined))
        if verdicts:
            # Before storing: the store may be unavailable for long, and refused deliveries need not wait for
            # it.
            await consumer.settle(verdicts)
        if messages:
            await self._save_and_ack(consumer, messages)

    def _examined(self, examine: Callable[[Delivery], M | Refuse], delivery: Delivery) -> M | Refuse:
        """Return the message, or its refusal, which the handler has recorded.

        No content of a delivery may end the process.
        """
        try:
            examined = _oversized(delivery) if delivery.omitted_bytes else examine(delivery)
            if isinstance(examined, Refuse):
                self._handler.on_refused(examined, delivery)
        except Exception as error:  # noqa: BLE001  the handler logs it
            return self._broken(None, error)
        return examined

    def _broken(self, message: M | None, error: Exception) -> Refuse:
        refusal = unreadable(error)
        self._handler.on_error(message, error, refusal)
        return refusal

    async def _save_and_ack(self, consumer: Consumer, messages: Sequence[tuple[Delivery, M]]) -> None:
        try:
            results = await self._save(messages)
        except Exception as error:  # noqa: BLE001  the handler logs it
            # A bug that one message triggers must not stop the others, now or at every new start.
            if len(messages) > 1:
                for one in messages:
                    await self._save_and_ack(consumer, [one])
                return
            delivery, message = messages[0]
            await consumer.settle([(delivery, self._broken(message, error))])
        else:
            self._handler.on_saved([message for _, message in messages], results)
            ack = Ack()
            await consumer.settle([(delivery, ack) for delivery, _ in messages])

    async def _save(self, messages: Sequence[tuple[Delivery, M]]) -> Sequence[R]:
        """Store the messages durably; retry while the store is unavailable."""
        received = [message for _, message in messages]
        deliveries = [delivery for delivery, _ in messages]
        failures = 0
        while True:
            try:
                results = await self._handler.save(received, deliveries)
            except StoreUnavailable as error:
                self._pause(error, len(messages))
            else:
                self._resume()
                return results
            await asyncio.sleep(self._retry_seconds(failures, LAST_STORE_RETRY_SECONDS))
            failures += 1

    def _pause(self, error: StoreUnavailable, count: int) -> None:
        if self._paused_since is None:
            self._paused_since = time.monotonic()
            log.warning(LogEvent.INTAKE_PAUSED, detail=str(error), count=count)

    def _resume(self) -> None:
        if self._paused_since is not None:
            log.info(LogEvent.INTAKE_RESUMED, paused_seconds=round(time.monotonic() - self._paused_since, 3))
            self._paused_since = None

    async def _declare(self, topology: Topology) -> None:
        failures, logged = 0, ""
        while True:
            try:
                await self._broker.ready(CONNECT_SECONDS)
                await self._broker.declare(topology)
            except BrokerUnavailable as error:
                self._undeclared = f"the queues are not declared: {error}"
                if str(error) != logged:
                    # Once for each error: an operator has to grant a missing permission.
                    logged = str(error)
                    log.warning(LogEvent.BROKER_AWAITED, detail=logged)
                await asyncio.sleep(self._retry_seconds(failures))
                failures += 1
            else:
                self._undeclared = ""
                return

    def _retry_seconds(self, failures: int, longest: float = LAST_RETRY_SECONDS) -> float:
        return backoff_seconds(failures, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=longest)


def first_problem(receivers: Iterable[Receiver[Any, Any]]) -> str | None:
    """Return why one of these cannot get messages, or that none has begun; else None."""
    problems = [receiver.problem for receiver in receivers]
    return next((each for each in problems if each), None) if problems else "no queue is consumed yet"


def _oversized(delivery: Delivery) -> Refuse:
    """Return the refusal of a delivery without its body."""
    return Refuse(
        reason="oversize",
        detail=f"{delivery.omitted_bytes} bytes, at most {MAX_MESSAGE_BYTES} are allowed",
    )
