"""Wishes to cancel come from the broker into the store: what was asked for of a change request before them ends."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Broker
from solstice_common.messages import JobCancelV1
from solstice_orchestrator.domain.admission import examine_cancel
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.receiving import Receiver
from solstice_orchestrator.store.protocol import Cancelled, JobStore

log = structlog.get_logger("solstice_orchestrator.stages.cancel_intake")


class CancelIntake(Receiver[JobCancelV1, Cancelled]):
    """One intake of wishes to cancel."""

    def __init__(self, *, broker: Broker, store: JobStore, metrics: Metrics, rng: random.Random) -> None:
        super().__init__(_Cancels(store=store, metrics=metrics), broker=broker, rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cancels:
    """A Desk."""

    store: JobStore
    metrics: Metrics

    def examine(self, body: bytes) -> JobCancelV1 | Refuse:
        return examine_cancel(body)

    async def keep(self, messages: Sequence[JobCancelV1], bodies: Sequence[bytes]) -> Sequence[Cancelled]:  # noqa: ARG002  Desk's
        return await self.store.cancel_changes(messages)

    def kept(self, messages: Sequence[JobCancelV1], results: Sequence[Cancelled]) -> None:
        for cancel, cancelled in zip(messages, results, strict=True):
            verdict = "ended" if cancelled.run_ids else "nothing"
            self.metrics.cancel_kept(verdict)
            log.info(
                LogEvent.CANCEL_KEPT,
                cancel_id=cancel.cancel_id,
                repository=cancel.repo_full_name or cancel.repo_url,
                change_number=cancel.change_number,
                sender=cancel.sender,
                run_ids=list(cancelled.run_ids),
                reason=reason_of(cancelled),
            )

    def refused(self, refusal: Refuse, correlation_id: str | None) -> None:
        self.metrics.cancel_refused(refusal.reason)
        log.warning(
            LogEvent.CANCEL_REFUSED,
            reason=refusal.reason,
            detail=refusal.detail,
            correlation_id=correlation_id,
        )

    def broke(self, message: JobCancelV1, error: Exception, refusal: Refuse) -> None:
        log.error(LogEvent.CANCEL_BROKE, cancel_id=message.cancel_id, exc_info=error)
        self.metrics.cancel_refused(refusal.reason)


def reason_of(cancelled: Cancelled) -> str:
    """What came of a wish, as one word of a closed list."""
    if cancelled.run_ids:
        return "runs_ended"
    return "nothing_runs" if cancelled.known else "unknown_change"
