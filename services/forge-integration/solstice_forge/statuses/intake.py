"""Takes statuses from the broker, stores them durably, and only then acks them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from solstice_common.broker.delivery import Ack, Refuse, Verdict, unreadable
from solstice_common.broker.protocol import Broker, Consumer, Delivery
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.topology import Topology
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.statuses.protocol import StatusStore
from solstice_forge.statuses.wanted_status import NotReported, WantedStatus, wanted

log = structlog.get_logger("solstice_forge.statuses")

CONNECT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0


class StatusIntake:
    """One consumer of statuses.

    It stops while the store is unreachable: its deliveries stay unacked with the broker.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        store: StatusStore,
        tellable: Mapping[str, bool],
        metrics: Metrics,
        rng: random.Random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._broker = broker
        self._store = store
        self._tellable = tellable
        self._metrics = metrics
        self._rng = rng
        self._clock = clock

    async def run(self, queue: str, topology: Topology, *, prefetch: int) -> None:
        """Take statuses until cancelled; unacked ones come again and are recognised.

        Raises TopologyMismatch.
        """
        await self._declare(topology)
        async with self._broker.consume(queue, prefetch=prefetch) as consumer:
            while True:
                await self.take(consumer, await consumer.batch())

    async def take(self, consumer: Consumer, batch: Sequence[Delivery]) -> None:
        """Store what the batch asks for and settle all of it.

        A poison message does not stop the others.
        """
        verdicts: list[tuple[Delivery, Verdict]] = []
        accepted: list[tuple[Delivery, WantedStatus]] = []
        counted: Counter[str] = Counter()
        for delivery in batch:
            found = self._examine(delivery)
            match found:
                case Refuse():
                    verdicts.append((delivery, found))
                    counted["refused"] += 1
                case NotReported(reason=reason):
                    verdicts.append((delivery, Ack()))
                    counted[reason] += 1
                case _:
                    accepted.append((delivery, found))
        if verdicts:
            await consumer.settle(verdicts)
        if accepted:
            for result in await self._keep([each for _, each in accepted]):
                counted[result] += 1
            await consumer.settle([(delivery, Ack()) for delivery, _ in accepted])
        for outcome, count in counted.items():
            self._metrics.status_taken(outcome, count)

    def _examine(self, delivery: Delivery) -> WantedStatus | NotReported | Refuse:
        """Return what the status asks for, or its refusal, which is logged.

        No content of a delivery may end the process.
        """
        try:
            found = wanted(delivery.body, self._tellable)
            if isinstance(found, Refuse):
                log.warning(
                    LogEvent.STATUS_REFUSED,
                    reason=found.reason,
                    detail=found.detail,
                    correlation_id=delivery.correlation_id,
                )
        except Exception as error:
            found = unreadable(error)
            log.exception(LogEvent.STATUS_REFUSED, reason=found.reason, detail=found.detail)
        return found

    async def _keep(self, statuses: Sequence[WantedStatus]) -> Sequence[str]:
        """Store the statuses; durable on return, however long the store is unreachable."""
        failures = 0
        while True:
            try:
                result = await self._store.keep(statuses, self._clock())
            except StoreUnavailable as error:
                if failures == 0:
                    log.warning(LogEvent.STATUSES_HELD, count=len(statuses), detail=error.detail)
            else:
                return result
            await asyncio.sleep(self._retry_seconds(failures))
            failures += 1

    async def _declare(self, topology: Topology) -> None:
        failures = 0
        while True:
            try:
                await self._broker.ready(CONNECT_SECONDS)
                await self._broker.declare(topology)
            except BrokerUnavailable:
                await asyncio.sleep(self._retry_seconds(failures))
                failures += 1
            else:
                return

    def _retry_seconds(self, failures: int) -> float:
        return backoff_seconds(
            failures, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=LAST_RETRY_SECONDS
        )
