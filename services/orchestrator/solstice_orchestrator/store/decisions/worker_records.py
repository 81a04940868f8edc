"""Rows of workers: how registering, orders and ended attempts change them, and their views. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.quarantine import (
    COUNTED_REASONS,
    HealthRecord,
    QuarantineCause,
    after_end,
    others_alone_until,
    proves_able,
    quarantined,
    repositories_last,
)
from solstice_orchestrator.scheduling.workers import (
    DesiredWorkerState,
    OrderRefusal,
    Presence,
    WorkerEligibility,
    WorkerJob,
    WorkerOrder,
    WorkerRegistration,
    WorkerView,
    apply_order,
    inherited_eligibility,
    presence_at,
    state_at,
)
from solstice_orchestrator.store.records.changes import Attempt, Job


class WorkerRow(NamedTuple):
    """A worker's row, the same in every store; its fields name their columns."""

    worker_id: str
    name: str
    """Empty for a worker that never registered."""
    host: str
    version: str
    slots: str
    """JSON object: slots by label."""
    slot_limit: int
    ordered: DesiredWorkerState
    failures: int
    quarantined_until: float | None
    started_at: float
    seen_at: float
    ended_at: float | None
    shrunk_to: int | None = None
    refuses: str | None = None
    refusal: str = ""
    condition_at: float | None = None
    causes: str = "[]"
    """JSON: the causes of its consecutive failures."""

    @property
    def eligibility(self) -> WorkerEligibility:
        return WorkerEligibility(
            ordered=self.ordered,
            record=HealthRecord(
                failures=self.failures,
                quarantined_until=self.quarantined_until,
                causes=tuple(QuarantineCause(*each) for each in json.loads(self.causes)),
            ),
        )

    def with_eligibility(self, eligibility: WorkerEligibility) -> "WorkerRow":
        """Return the row with another eligibility."""
        return self._replace(
            ordered=eligibility.ordered,
            failures=eligibility.record.failures,
            quarantined_until=eligibility.record.quarantined_until,
            causes=json.dumps(eligibility.record.causes),
        )


def registered(
    registration: WorkerRegistration, known: WorkerRow | None, namesakes: Iterable[WorkerRow], now: float
) -> WorkerRow:
    """Return the row of a worker that registers.

    `known` is the row that its id already has, from its first claim or an earlier registration; `namesakes` are the
    rows of other processes of its name. The worker inherits the eligibility of the last one seen.
    """
    row = WorkerRow(
        worker_id=registration.worker_id,
        name=registration.name,
        host=registration.host,
        version=registration.version,
        slots=json.dumps(dict(registration.capacity.slots)),
        slot_limit=registration.capacity.limit,
        ordered=DesiredWorkerState.WORK,
        failures=0,
        quarantined_until=None,
        started_at=now,
        seen_at=now,
        ended_at=None,
    )
    if known is not None:
        return row.with_eligibility(known.eligibility)._replace(started_at=known.started_at)
    last = max(namesakes, key=lambda worker: (worker.seen_at, worker.started_at), default=None)
    return row if last is None else row.with_eligibility(inherited_eligibility(last.eligibility))


def steered(
    worker: WorkerRow, order: WorkerOrder, now: float, lease_seconds: float
) -> WorkerRow | OrderRefusal:
    """Return the worker's row after a person's order."""
    presence = presence_at(worker.seen_at, worker.ended_at, now, lease_seconds)
    eligibility = apply_order(worker.eligibility, presence, order, now)
    return eligibility if isinstance(eligibility, OrderRefusal) else worker.with_eligibility(eligibility)


def forgotten_with(namesakes: Iterable[WorkerRow], now: float, lease_seconds: float) -> Sequence[str]:
    """Return the ids of namesakes whose process has ended."""
    return [
        worker.worker_id
        for worker in namesakes
        if presence_at(worker.seen_at, worker.ended_at, now, lease_seconds) is not Presence.ALIVE
    ]


def healthy_ends(attempts: Iterable[Attempt]) -> Sequence[str]:
    """Return the workers whose failures, if any, these ends clear.

    This is the common case, and needs no rows of workers.
    """
    return [
        worker_id
        for worker_id, ended in _by_worker(attempts).items()
        if not any(attempt.reason in COUNTED_REASONS for attempt in ended)
        and any(proves_able(_outcome(attempt.state, attempt.reason)) for attempt in ended)
    ]


def counted_failures(attempts: Iterable[Attempt]) -> Mapping[str, Sequence[Attempt]]:
    """Return the ends of workers with failures that count; each goes through `after_ends`."""
    return {
        worker_id: ended
        for worker_id, ended in _by_worker(attempts).items()
        if any(attempt.reason in COUNTED_REASONS for attempt in ended)
    }


def after_ends(worker: WorkerRow, attempts: Iterable[Attempt], jobs: Iterable[Job], now: float) -> WorkerRow:
    """Return the worker's row after these attempts ended, in order.

    Their jobs are among `jobs`.
    """
    causes = {job.job_id: QuarantineCause(job.repository, job.name, job.job_id) for job in jobs}
    eligibility = worker.eligibility
    record = eligibility.record
    for attempt in attempts:
        record = after_end(record, _outcome(attempt.state, attempt.reason), causes[attempt.job_id], now)
    return worker.with_eligibility(WorkerEligibility(ordered=eligibility.ordered, record=record))


def worker_view(worker: WorkerRow, jobs: Sequence[WorkerJob], now: float, lease_seconds: float) -> WorkerView:
    """Return the worker as readers see it."""
    record = worker.eligibility.record
    return WorkerView(
        worker_id=worker.worker_id,
        name=worker.name or worker.worker_id,
        host=worker.host,
        version=worker.version,
        slots=MappingProxyType(json.loads(worker.slots)),
        limit=worker.slot_limit,
        presence=presence_at(worker.seen_at, worker.ended_at, now, lease_seconds),
        state=state_at(worker.eligibility, now),
        quarantined_until=record.quarantined_until if quarantined(record, now) else None,
        failures_in_a_row=record.failures,
        started_at=worker.started_at,
        seen_at=worker.seen_at,
        jobs=tuple(jobs),
        shrunk_to=worker.shrunk_to,
        refuses=None if worker.refuses is None else Resource(worker.refuses),
        refusal=worker.refusal,
        condition_at=worker.condition_at,
        repositories_last=tuple(sorted(repositories_last(record))),
        others_alone_until=others_alone_until(record, now),
    )


def _by_worker(attempts: Iterable[Attempt]) -> Mapping[str, Sequence[Attempt]]:
    by_worker: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_worker.setdefault(attempt.worker_id, []).append(attempt)
    return by_worker


# There are few pairs, and nearly all attempts share one.
@lru_cache(maxsize=128)
def _outcome(state: JobState, reason: Reason) -> Outcome:
    return Outcome(state=state, reason=reason)
