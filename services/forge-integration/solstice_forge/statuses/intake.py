"""Takes statuses from the broker, stores them durably, and only then acks them."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Broker, Delivery
from solstice_common.broker.receiving.receiver import Receiver
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.statuses.protocol import StatusStore
from solstice_forge.statuses.reportable_status import NotReported, ReportableStatus, reportable

log = structlog.get_logger(__name__)


class StatusIntake(Receiver[ReportableStatus | NotReported, str]):
    """The consumer of statuses."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: StatusStore,
        has_remote: Mapping[str, bool],
        metrics: Metrics,
        rng: random.Random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        handler = _StatusHandler(store=store, has_remote=has_remote, metrics=metrics, clock=clock)
        # One batch at a time: two would wait for each other's rows in the database.
        super().__init__(handler, broker=broker, rng=rng, at_once=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatusHandler:
    """A MessageHandler for statuses; its results are words for the metric."""

    store: StatusStore
    has_remote: Mapping[str, bool]
    metrics: Metrics
    clock: Callable[[], float]

    def examiner(
        self,
        batch: Sequence[Delivery],  # noqa: ARG002  MessageHandler's
    ) -> Callable[[Delivery], ReportableStatus | NotReported | Refuse]:
        return lambda delivery: reportable(delivery.body, self.has_remote)

    async def save(
        self,
        messages: Sequence[ReportableStatus | NotReported],
        deliveries: Sequence[Delivery],  # noqa: ARG002  MessageHandler's
    ) -> Sequence[str]:
        statuses = [message for message in messages if isinstance(message, ReportableStatus)]
        results = iter(await self.store.keep(statuses, self.clock()) if statuses else ())
        return [message.reason if isinstance(message, NotReported) else next(results) for message in messages]

    def on_saved(
        self,
        messages: Sequence[ReportableStatus | NotReported],  # noqa: ARG002  MessageHandler's
        results: Sequence[str],
    ) -> None:
        for outcome, count in Counter(results).items():
            self.metrics.status_taken(outcome, count)

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        self.metrics.status_taken("refused")
        log.warning(
            LogEvent.STATUS_REFUSED,
            reason=refusal.reason,
            detail=refusal.detail,
            correlation_id=delivery.correlation_id,
        )

    def on_error(
        self,
        message: ReportableStatus | NotReported | None,
        error: Exception,
        refusal: Refuse,  # noqa: ARG002  MessageHandler's
    ) -> None:
        status = message if isinstance(message, ReportableStatus) else None
        log.error(
            LogEvent.STATUS_HANDLING_CRASHED,
            source=status and status.source_name,
            request_id=status and status.request_id,
            exc_info=error,
        )
        self.metrics.status_taken("refused")
