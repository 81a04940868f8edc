"""From the broker into the store: validated, kept in one transaction, and only then acked."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

import structlog

from solstice_common.backoff import backoff_seconds
from solstice_common.broker.protocol import Broker, Consumer, Delivery
from solstice_common.delivery import Ack, Refuse, Verdict
from solstice_common.errors import BrokerUnavailable, StoreUnavailable
from solstice_common.messages import JobRequestV1
from solstice_common.topology import Topology
from solstice_orchestrator.admission import examine
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import Admission, Admitted, JobStore

log = structlog.get_logger("solstice_orchestrator.intake")

GROUPS_IN_FLIGHT: Final = 4
"""While one group is being written to disk the next ones are read and validated."""
CONNECT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0
LAST_STORE_RETRY_SECONDS: Final = 2.0
"""A store is asked often: it is ours alone, and jobs cannot start before it has their requests."""

Request = tuple[Delivery, JobRequestV1]


class Intake:
    """One intake. A store that is away stops it: what was delivered stays unacked with the broker until it returns."""

    def __init__(self, *, broker: Broker, store: JobStore, metrics: Metrics, rng: random.Random) -> None:
        self._broker = broker
        self._store = store
        self._metrics = metrics
        self._rng = rng
        self._held_since: float | None = None

    async def run(self, queue: str, topology: Topology, *, prefetch: int) -> None:
        """Take requests until cancelled; what is under way then comes again, and is a duplicate.

        Raises TopologyMismatch.
        """
        await self._declare(topology)
        async with self._broker.consume(queue, prefetch=prefetch) as consumer, asyncio.TaskGroup() as groups:
            in_flight = asyncio.Semaphore(GROUPS_IN_FLIGHT)
            while True:
                # Before the batch is taken: with a store that is away, the rest stays with the broker.
                await in_flight.acquire()
                batch = await consumer.batch()
                task = groups.create_task(self.take(consumer, batch), name=f"intake of {len(batch)}")
                task.add_done_callback(lambda _: in_flight.release())

    async def take(self, consumer: Consumer, batch: Sequence[Delivery]) -> None:
        """Keep the requests of one batch and settle all of it; poison stops nobody else."""
        verdicts: list[tuple[Delivery, Verdict]] = []
        requests: list[Request] = []
        for delivery in batch:
            examined = examine(delivery.body)
            if isinstance(examined, Refuse):
                verdicts.append((delivery, examined))
                self._metrics.request_refused(examined.reason)
                log.warning(
                    LogEvent.REQUEST_REFUSED,
                    reason=examined.reason,
                    detail=examined.detail,
                    correlation_id=delivery.correlation_id,
                )
            else:
                requests.append((delivery, examined))
        if verdicts:
            # At once: the store may be away for long, and poison has nothing to wait for.
            await consumer.settle(verdicts)
        if requests:
            await self._keep_and_ack(consumer, requests)

    async def _keep_and_ack(self, consumer: Consumer, requests: Sequence[Request]) -> None:
        try:
            admissions = await self._keep(requests)
        except Exception as error:
            # A mistake of ours that one request brings out must not stop the others, now or at every new start.
            if len(requests) > 1:
                for one in requests:
                    await self._keep_and_ack(consumer, [one])
                return
            delivery, request = requests[0]
            log.exception(LogEvent.REQUEST_BROKE, request_id=request.request_id)
            self._metrics.request_refused("internal_error")
            refusal = Refuse(reason="internal_error", detail=f"{type(error).__name__}: {error}"[:1000])
            await consumer.settle([(delivery, refusal)])
        else:
            self._count(requests, admissions)
            ack = Ack()
            await consumer.settle([(delivery, ack) for delivery, _ in requests])

    async def _keep(self, requests: Sequence[Request]) -> Sequence[Admission]:
        """Durable on return, however long the store is away."""
        wanted = [request for _, request in requests]
        bodies = [delivery.body for delivery, _ in requests]
        failures = 0
        while True:
            try:
                admissions = await self._store.admit(wanted, bodies)
            except StoreUnavailable as error:
                self._hold(error, len(requests))
            else:
                self._resume()
                return admissions
            await asyncio.sleep(self._retry_seconds(failures, LAST_STORE_RETRY_SECONDS))
            failures += 1

    def _count(self, requests: Sequence[Request], admissions: Sequence[Admission]) -> None:
        admitted = sum(isinstance(admission, Admitted) for admission in admissions)
        duplicates = len(admissions) - admitted
        self._metrics.requests_admitted(admitted)
        self._metrics.requests_duplicate(duplicates)
        log.info(
            LogEvent.REQUESTS_KEPT,
            admitted=admitted,
            duplicates=duplicates,
            request_ids=[request.request_id for _, request in requests],
        )

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
                    # Once for each thing that is wrong: a missing permission is for a person to mend.
                    said = str(error)
                    log.warning(LogEvent.BROKER_AWAITED, detail=said)
                await asyncio.sleep(self._retry_seconds(failures))
                failures += 1
            else:
                return

    def _retry_seconds(self, failures: int, longest: float = LAST_RETRY_SECONDS) -> float:
        return backoff_seconds(failures, rng=self._rng, base_seconds=FIRST_RETRY_SECONDS, cap_seconds=longest)
