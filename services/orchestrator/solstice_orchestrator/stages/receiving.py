"""Validate messages of a broker queue, store them, and only then ack them."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Verdict, unreadable
from solstice_common.broker.protocol import Broker, Consumer, Delivery
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.topology import Topology
from solstice_orchestrator.log_events import LogEvent

log = structlog.get_logger("solstice_orchestrator.stages.receiving")

M = TypeVar("M")
R = TypeVar("R")


GROUPS_IN_FLIGHT: Final = 4
"""While one batch is written to disk, the next ones are read and validated."""
CONNECT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0
LAST_STORE_RETRY_SECONDS: Final = 2.0
"""The longest pause between two tries: jobs cannot start before the store has their requests."""


class MessageHandler(Protocol[M, R]):
    """Examines and stores messages of one queue: `M` is a message, `R` its result."""

    def examine(self, body: bytes) -> M | Refuse:
        """Return the message, or the refusal of a body that is none."""
        ...

    async def save(self, messages: Sequence[M], bodies: Sequence[bytes]) -> Sequence[R]:
        """Store the messages durably, and return a result for each.

        Raises only StoreUnavailable, and may be called again with the same messages.
        """
        ...

    def on_saved(self, messages: Sequence[M], results: Sequence[R]) -> None:
        """Record messages that are stored and will be acked."""
        ...

    def on_refused(self, refusal: Refuse, correlation_id: str | None) -> None:
        """Record a refused delivery, which becomes a dead letter."""
        ...

    def on_error(self, message: M, error: Exception, refusal: Refuse) -> None:
        """Record a message that brought out a bug, and becomes a dead letter."""
        ...


class IntakeGate(Protocol):
    """Says whether intake is held."""

    @property
    def held(self) -> bool:
        """Whether no message may be taken now."""
        ...

    async def room(self) -> None:
        """Wait until messages may be taken."""
        ...


class Receiver(Generic[M, R]):
    """A consumer of one queue, which stops while the store is away.

    Deliveries then stay unacked at the broker until the store is back.
    """

    def __init__(
        self,
        handler: MessageHandler[M, R],
        *,
        broker: Broker,
        rng: random.Random,
        gate: IntakeGate | None = None,
    ) -> None:
        """Without a gate, intake is never held."""
        self._handler = handler
        self._broker = broker
        self._rng = rng
        self._gate = gate
        self._held_since: float | None = None

    async def run(self, queue: str, topology: Topology, *, prefetch: int) -> None:
        """Take messages until cancelled.

        The broker delivers again what was under way then; messages that were stored already are duplicates.

        Raises TopologyMismatch.
        """
        await self._declare(topology)
        while True:
            if self._gate is not None:
                await self._gate.room()
            # Left, not only unread: RabbitMQ closes the channel of a consumer that holds a delivery for half an hour.
            await self._take_while_room(queue, prefetch)

    async def _take_while_room(self, queue: str, prefetch: int) -> None:
        async with self._broker.consume(queue, prefetch=prefetch) as consumer, asyncio.TaskGroup() as groups:
            in_flight = asyncio.Semaphore(GROUPS_IN_FLIGHT)
            while self._gate is None or not self._gate.held:
                # Before the batch is taken: while the store is away, the rest stays at the broker.
                await in_flight.acquire()
                batch = await consumer.batch()
                task = groups.create_task(self.take(consumer, batch), name=f"intake of {len(batch)}")
                task.add_done_callback(lambda _: in_flight.release())

    async def take(self, consumer: Consumer, batch: Sequence[Delivery]) -> None:
        """Store the messages of one batch and settle all its deliveries, refused ones first."""
        verdicts: list[tuple[Delivery, Verdict]] = []
        messages: list[tuple[Delivery, M]] = []
        for delivery in batch:
            examined = self._examine(delivery)
            if isinstance(examined, Refuse):
                verdicts.append((delivery, examined))
            else:
                messages.append((delivery, examined))
        if verdicts:
            # At once: the store may be away for long, and refused deliveries need not wait for it.
            await consumer.settle(verdicts)
        if messages:
            await self._save_and_ack(consumer, messages)

    def _examine(self, delivery: Delivery) -> M | Refuse:
        """Return the message, or its refusal, which is logged.

        No content of a delivery may end the process.
        """
        try:
            examined = self._handler.examine(delivery.body)
            if isinstance(examined, Refuse):
                self._handler.on_refused(examined, delivery.correlation_id)
        except Exception as error:
            refusal = unreadable(error)
            log.exception(LogEvent.DELIVERY_UNREADABLE, detail=refusal.detail)
            return refusal
        return examined

    async def _save_and_ack(self, consumer: Consumer, messages: Sequence[tuple[Delivery, M]]) -> None:
        try:
            results = await self._save(messages)
        except Exception as error:  # noqa: BLE001  the handler logs it
            # A bug that one message brings out must not stop the others, now or at every new start.
            if len(messages) > 1:
                for one in messages:
                    await self._save_and_ack(consumer, [one])
                return
            delivery, message = messages[0]
            refusal = unreadable(error)
            self._handler.on_error(message, error, refusal)
            await consumer.settle([(delivery, refusal)])
        else:
            self._handler.on_saved([message for _, message in messages], results)
            ack = Ack()
            await consumer.settle([(delivery, ack) for delivery, _ in messages])

    async def _save(self, messages: Sequence[tuple[Delivery, M]]) -> Sequence[R]:
        """Store the messages durably; try again for as long as the store is away."""
        wanted = [message for _, message in messages]
        bodies = [delivery.body for delivery, _ in messages]
        failures = 0
        while True:
            try:
                results = await self._handler.save(wanted, bodies)
            except StoreUnavailable as error:
                self._hold(error, len(messages))
            else:
                self._resume()
                return results
            await asyncio.sleep(self._retry_seconds(failures, LAST_STORE_RETRY_SECONDS))
            failures += 1

    def _hold(self, error: StoreUnavailable, count: int) -> None:
        if self._held_since is None:
            self._held_since = time.monotonic()
            log.warning(LogEvent.INTAKE_HELD, detail=str(error), count=count)

    def _resume(self) -> None:
        if self._held_since is not None:
            log.info(LogEvent.INTAKE_RESUMED, held_seconds=round(time.monotonic() - self._held_since, 3))
            self._held_since = None

    async def _declare(self, topology: Topology) -> None:
        failures, said = 0, ""
        while True:
            try:
                await self._broker.ready(CONNECT_SECONDS)
                await self._broker.declare(topology)
            except BrokerUnavailable as error:
                if str(error) != said:
                    # Once for each error: an operator has to grant a missing permission.
                    said = str(error)
                    log.warning(LogEvent.BROKER_AWAITED, detail=said)
                await asyncio.sleep(self._retry_seconds(failures))
                failures += 1
            else:
                return

    def _retry_seconds(self, failures: int, longest: float = LAST_RETRY_SECONDS) -> float:
        return backoff_seconds(failures, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=longest)
