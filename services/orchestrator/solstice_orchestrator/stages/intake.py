"""Take requests from the broker into the store; each becomes one run."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Broker, Delivery
from solstice_common.broker.receiving.receiver import Receiver
from solstice_common.messages import JobRequestV1, Priority, Source
from solstice_common.messages.priorities import class_in
from solstice_common.signing.key_file import KeyFile
from solstice_common.signing.keys import VerifyKey
from solstice_orchestrator.domain.admission import examine
from solstice_orchestrator.domain.signed_admission import SignedExaminer
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.backlog import JobBacklog
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.store.protocol import Admission, Admitted, JobStore

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class SignatureRules:
    """The keys that must sign a request, and its largest age."""

    keys: KeyFile[Mapping[str, VerifyKey]]
    v1_trust: frozenset[Source]
    max_age_seconds: float | None
    """For how long runs are kept after their end, so that a repeated request is recognised; None: forever."""
    signed_by: Counter[str] = field(default_factory=Counter, init=False)
    """How many requests each key signed that are not counted yet."""
    _examiner: SignedExaminer | None = field(default=None, init=False)

    def examiner(self) -> SignedExaminer:
        """Return what examines requests, by the keys of now."""
        keys = self.keys.current()
        if self._examiner is None or self._examiner.keys is not keys:
            self._examiner = SignedExaminer(
                keys,
                v1_trust=self.v1_trust,
                max_age_seconds=self.max_age_seconds,
                signed_by=self.signed_by,
            )
        return self._examiner


class Intake(Receiver[JobRequestV1, Admission]):
    """The consumer of requests."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: JobStore,
        metrics: Metrics,
        rng: random.Random,
        backlog: JobBacklog | None = None,
        signatures: SignatureRules | None = None,
        early: EarlyFetches | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`backlog` says when intake is paused; without it, intake is never paused.

        Without `signatures`, a request need not be signed. `early` learns of requests before they are stored.
        """
        backlog = backlog or JobBacklog(store=store, most=0, metrics=metrics)
        handler = _RequestHandler(
            store=store,
            metrics=metrics,
            backlog=backlog,
            signatures=signatures,
            early=early or EarlyFetches(),
            clock=clock,
        )
        super().__init__(handler, broker=broker, rng=rng, gate=backlog)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestHandler:
    """A MessageHandler for requests."""

    store: JobStore
    metrics: Metrics
    backlog: JobBacklog
    signatures: SignatureRules | None
    early: EarlyFetches
    clock: Callable[[], float]

    def examiner(self, batch: Sequence[Delivery]) -> Callable[[Delivery], JobRequestV1 | Refuse]:
        now = self.clock()
        if self.signatures is None:
            return lambda delivery: examine(delivery.body, now)
        return self.signatures.examiner().of_batch(batch, now)

    async def save(
        self, messages: Sequence[JobRequestV1], deliveries: Sequence[Delivery]
    ) -> Sequence[Admission]:
        self.early.begin(messages)
        bodies = [delivery.body for delivery in deliveries]
        if self.signatures is None:
            return await self.store.admit(messages, bodies)
        # All of a batch are examined before one is saved.
        while self.signatures.signed_by:
            self.metrics.signed_by(*self.signatures.signed_by.popitem())
        signatures = [str(delivery.header(SIGNATURE_HEADER)) for delivery in deliveries]
        return await self.store.admit(messages, bodies, signatures)

    def on_saved(self, messages: Sequence[JobRequestV1], results: Sequence[Admission]) -> None:
        admitted = sum(isinstance(admission, Admitted) for admission in results)
        duplicates = len(results) - admitted
        # A delayed run is no backlog; if it is due already, the next count includes it.
        at_once = sum(
            isinstance(admission, Admitted) and request.not_before is None
            for request, admission in zip(messages, results, strict=True)
        )
        self.backlog.count_new_runs(at_once)
        self._count(messages, results)
        log.info(
            LogEvent.REQUESTS_STORED,
            admitted=admitted,
            duplicates=duplicates,
            request_ids=[request.request_id for request in messages],
        )

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        self.metrics.request_refused(refusal.reason, class_in(delivery.body) or Priority.DEFAULT)
        log.warning(
            LogEvent.REQUEST_REFUSED,
            reason=refusal.reason,
            detail=refusal.detail,
            correlation_id=delivery.correlation_id,
        )

    def on_error(self, message: JobRequestV1 | None, error: Exception, refusal: Refuse) -> None:
        log.error(
            LogEvent.REQUEST_HANDLING_CRASHED, request_id=message and message.request_id, exc_info=error
        )
        priority = (message and message.priority) or Priority.DEFAULT
        self.metrics.request_refused(refusal.reason, priority)

    def _count(self, messages: Sequence[JobRequestV1], results: Sequence[Admission]) -> None:
        by_class = Counter(
            (isinstance(admission, Admitted), request.priority)
            for request, admission in zip(messages, results, strict=True)
        )
        for (is_admitted, priority), count in by_class.items():
            record = self.metrics.requests_admitted if is_admitted else self.metrics.requests_duplicate
            record(count, priority or Priority.DEFAULT)
