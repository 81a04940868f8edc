"""Take requests from the broker into the store; each becomes one run."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Broker
from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.admission import examine
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.backlog import Backlog
from solstice_orchestrator.stages.receiving import Receiver
from solstice_orchestrator.store.protocol import Admission, Admitted, JobStore

log = structlog.get_logger("solstice_orchestrator.stages.intake")


class Intake(Receiver[JobRequestV1, Admission]):
    """The consumer of requests."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: JobStore,
        metrics: Metrics,
        rng: random.Random,
        backlog: Backlog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`backlog` says when intake is held; without it, intake is never held."""
        backlog = backlog or Backlog(store=store, most=0, metrics=metrics)
        handler = _RequestHandler(store=store, metrics=metrics, backlog=backlog, clock=clock)
        super().__init__(handler, broker=broker, rng=rng, gate=backlog)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestHandler:
    """A MessageHandler for requests."""

    store: JobStore
    metrics: Metrics
    backlog: Backlog
    clock: Callable[[], float]

    def examine(self, body: bytes) -> JobRequestV1 | Refuse:
        return examine(body, self.clock())

    async def save(self, messages: Sequence[JobRequestV1], bodies: Sequence[bytes]) -> Sequence[Admission]:
        return await self.store.admit(messages, bodies)

    def on_saved(self, messages: Sequence[JobRequestV1], results: Sequence[Admission]) -> None:
        admitted = sum(isinstance(admission, Admitted) for admission in results)
        duplicates = len(results) - admitted
        self.metrics.requests_admitted(admitted)
        # A delayed run is no backlog; if it is due already, the next count includes it.
        at_once = sum(
            isinstance(admission, Admitted) and request.not_before is None
            for request, admission in zip(messages, results, strict=True)
        )
        self.backlog.count_new_runs(at_once)
        self.metrics.requests_duplicate(duplicates)
        log.info(
            LogEvent.REQUESTS_KEPT,
            admitted=admitted,
            duplicates=duplicates,
            request_ids=[request.request_id for request in messages],
        )

    def on_refused(self, refusal: Refuse, correlation_id: str | None) -> None:
        self.metrics.request_refused(refusal.reason)
        log.warning(
            LogEvent.REQUEST_REFUSED,
            reason=refusal.reason,
            detail=refusal.detail,
            correlation_id=correlation_id,
        )

    def on_error(self, message: JobRequestV1, error: Exception, refusal: Refuse) -> None:
        log.error(LogEvent.REQUEST_BROKE, request_id=message.request_id, exc_info=error)
        self.metrics.request_refused(refusal.reason)
