"""Take cancel requests from the broker, and cancel earlier runs of their change requests."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Broker, Delivery
from solstice_common.broker.receiving.receiver import Receiver
from solstice_common.messages import JobCancelV1
from solstice_common.signing.key_file import KeyFile
from solstice_common.signing.keys import VerifyKey
from solstice_orchestrator.domain.admission import examine_cancel
from solstice_orchestrator.domain.signed_admission import examine_signed_cancel
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import Cancelled, JobStore

log = structlog.get_logger(__name__)


class CancelIntake(Receiver[JobCancelV1, Cancelled]):
    """The consumer of cancel requests."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: JobStore,
        metrics: Metrics,
        rng: random.Random,
        verify_keys: KeyFile[Mapping[str, VerifyKey]] | None = None,
    ) -> None:
        """Without `verify_keys`, a cancel request need not be signed."""
        handler = _CancelHandler(store=store, metrics=metrics, verify_keys=verify_keys)
        super().__init__(handler, broker=broker, rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CancelHandler:
    """A MessageHandler for cancel requests."""

    store: JobStore
    metrics: Metrics
    verify_keys: KeyFile[Mapping[str, VerifyKey]] | None

    def examiner(
        self,
        batch: Sequence[Delivery],  # noqa: ARG002  MessageHandler's
    ) -> Callable[[Delivery], JobCancelV1 | Refuse]:
        if self.verify_keys is None:
            return lambda delivery: examine_cancel(delivery.body)
        keys = self.verify_keys.current()

        def examine_next(delivery: Delivery) -> JobCancelV1 | Refuse:
            verified = examine_signed_cancel(delivery, keys)
            if isinstance(verified, Refuse):
                return verified
            self.metrics.signed_by(verified.key_name)
            return verified.message

        return examine_next

    async def save(
        self,
        messages: Sequence[JobCancelV1],
        deliveries: Sequence[Delivery],  # noqa: ARG002  MessageHandler's
    ) -> Sequence[Cancelled]:
        return await self.store.cancel_changes(messages)

    def on_saved(self, messages: Sequence[JobCancelV1], results: Sequence[Cancelled]) -> None:
        for cancel, cancelled in zip(messages, results, strict=True):
            verdict = "ended" if cancelled.run_ids else "nothing"
            self.metrics.cancel_stored(verdict)
            log.info(
                LogEvent.CANCEL_STORED,
                cancel_id=cancel.cancel_id,
                repository=cancel.repo_full_name or cancel.repo_url,
                change_number=cancel.change_number,
                sender=cancel.sender,
                run_ids=list(cancelled.run_ids),
                reason=result_of_cancel(cancelled),
            )

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        self.metrics.cancel_refused(refusal.reason)
        log.warning(
            LogEvent.CANCEL_REFUSED,
            reason=refusal.reason,
            detail=refusal.detail,
            correlation_id=delivery.correlation_id,
        )

    def on_error(self, message: JobCancelV1 | None, error: Exception, refusal: Refuse) -> None:
        log.error(LogEvent.CANCEL_HANDLING_CRASHED, cancel_id=message and message.cancel_id, exc_info=error)
        self.metrics.cancel_refused(refusal.reason)


def result_of_cancel(cancelled: Cancelled) -> str:
    """Return the result of a cancel request as one word of a closed list."""
    if cancelled.run_ids:
        return "runs_ended"
    return "nothing_runs" if cancelled.known else "unknown_change"
