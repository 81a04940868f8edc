"""What a worker is, which orders it accepts, and whether it takes jobs. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.quarantine import HealthRecord, quarantined

FORGET_SECONDS: Final = 24 * 3600.0
"""How long after its end a worker is still shown, and its eligibility inherited."""


class WorkerState(StrEnum):
    """What a worker does about new jobs.

    Running jobs go on in any state.
    """

    ACTIVE = "active"
    PAUSED = "paused"
    """Takes none until it is resumed."""
    DRAINING = "draining"
    """Takes none, and ends itself when its jobs have ended."""
    QUARANTINED = "quarantined"
    """Takes none for a while, after infrastructure failures or by an order."""


class Presence(StrEnum):
    """Whether a worker is alive."""

    ALIVE = "alive"
    LOST = "lost"
    """No heartbeat for the length of a lease: its jobs are rescued."""
    ENDED = "ended"
    """It reported its end."""


class DesiredWorkerState(StrEnum):
    """The last order to a worker, which applies until the next one."""

    WORK = "work"
    PAUSE = "pause"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistration:
    """What a worker reports when it registers."""

    worker_id: str
    """Unique to this process."""
    name: str
    """Stays the same when the process restarts (setting `WORKER_NAME`)."""
    host: str
    version: str
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPressure:
    """What a worker reports under pressure; by default it uses all its slots."""

    shrunk_to: int | None = None
    """Jobs at once for now, after infrastructure failures or under load; None: up to its limit."""
    refuses: Resource | None = None
    """The resource it lacks, so that it starts nothing."""
    refusal: str = ""
    """A sentence about the shortage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEligibility:
    """What the store keeps to decide about a worker's claims."""

    ordered: DesiredWorkerState = DesiredWorkerState.WORK
    record: HealthRecord = field(default_factory=HealthRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """A job that a worker runs."""

    job_id: str
    name: str
    runs_on: str
    attempt: int
    started_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as shown to users."""

    worker_id: str
    name: str
    host: str
    version: str
    slots: Mapping[str, int]
    """Per label; empty for a worker that never registered."""
    limit: int
    """Over all labels."""
    presence: Presence
    state: WorkerState
    quarantined_until: float | None
    """The end of a current quarantine, also when the worker is paused or draining."""
    failures_in_a_row: int
    started_at: float
    seen_at: float
    jobs: tuple[WorkerJob, ...]
    """The jobs it runs, oldest first."""
    shrunk_to: int | None = None
    """Jobs at once for now, fewer than `limit`; null: as many as `limit`.

    Infrastructure failures or load reduce it.
    """
    refuses: Resource | None = None
    """The resource it lacks, so that it starts nothing."""
    refusal: str = ""
    """A sentence about the shortage."""
    condition_at: float | None = None
    """When it reported these three; null: never."""
    repositories_last: tuple[str, ...] = ()
    """Repositories whose jobs led to its last quarantine.

    Jobs of other repositories start there first, until a job has ended there by itself.
    """
    others_alone_until: float | None = None
    """Until then it takes no jobs of `repositories_last` at all."""

    @property
    def at_once(self) -> int:
        """Jobs that it may run at once now, over all labels."""
        return self.limit if self.shrunk_to is None else min(self.limit, self.shrunk_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseOrder:
    """Take no new jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOrder:
    """Take new jobs again: ends a pause and a quarantine, and clears past failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """Take no new jobs, and end after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOrder:
    """Take no new jobs for a while."""

    seconds: float


WorkerOrder = PauseOrder | ResumeOrder | DrainOrder | QuarantineOrder


class OrderRefusal(StrEnum):
    """Why an order is refused; a closed list."""

    IS_DRAINING = "is_draining"
    """It may have ended just now, and will end for certain: start it again instead."""
    IS_GONE = "is_gone"
    """It has ended, or was lost, and cannot be drained."""


def state_at(eligibility: WorkerEligibility, now: float) -> WorkerState:
    """Return the worker's state; an order counts before a quarantine."""
    match eligibility.ordered:
        case DesiredWorkerState.DRAIN:
            return WorkerState.DRAINING
        case DesiredWorkerState.PAUSE:
            return WorkerState.PAUSED
        case DesiredWorkerState.WORK:
            return WorkerState.QUARANTINED if quarantined(eligibility.record, now) else WorkerState.ACTIVE


def may_claim(eligibility: WorkerEligibility, now: float) -> bool:
    """Return whether the worker may claim jobs and runs to plan."""
    return state_at(eligibility, now) is WorkerState.ACTIVE


def presence_at(seen_at: float, ended_at: float | None, now: float, lease_seconds: float) -> Presence:
    """Return the worker's presence, judged by its last heartbeat."""
    if ended_at is not None:
        return Presence.ENDED
    return Presence.LOST if seen_at <= now - lease_seconds else Presence.ALIVE


def slots_of(worker: WorkerView, label: str) -> int:
    """Return the worker's slots of a label, at least those in use.

    A worker that never registered reports no slots.
    """
    return max(
        min(worker.slots.get(label, 0), worker.at_once), sum(job.runs_on == label for job in worker.jobs)
    )


def free_slots(worker: WorkerView, label: str) -> int:
    """Return how many more jobs of this label its slots allow; shortages are ignored."""
    used = sum(job.runs_on == label for job in worker.jobs)
    return max(0, min(worker.slots.get(label, 0) - used, worker.at_once - len(worker.jobs)))


def living(workers: Iterable[WorkerView]) -> Sequence[WorkerView]:
    """Return the workers that are alive."""
    return [worker for worker in workers if worker.presence is Presence.ALIVE]


def served_labels(workers: Iterable[WorkerView]) -> frozenset[str]:
    """Return the labels of living workers, also of those that take no jobs."""
    return frozenset(
        label for worker in living(workers) for label, slots in worker.slots.items() if slots > 0
    )


def active(workers: Iterable[WorkerView]) -> Sequence[WorkerView]:
    """Return the workers that take jobs."""
    return [worker for worker in living(workers) if worker.state is WorkerState.ACTIVE]


def apply_order(
    eligibility: WorkerEligibility, presence: Presence, order: WorkerOrder, now: float
) -> WorkerEligibility | OrderRefusal:
    """Return the eligibility after `order`, or why the order is refused.

    A worker that is gone can still be paused, resumed and quarantined: this holds for the next process of its name.
    """
    match order:
        case DrainOrder() if presence is not Presence.ALIVE:
            return OrderRefusal.IS_GONE
        case DrainOrder():
            return replace(eligibility, ordered=DesiredWorkerState.DRAIN)
        case _ if eligibility.ordered is DesiredWorkerState.DRAIN and presence is Presence.ALIVE:
            return OrderRefusal.IS_DRAINING
        case PauseOrder():
            return replace(eligibility, ordered=DesiredWorkerState.PAUSE)
        case ResumeOrder():
            return WorkerEligibility()
        case QuarantineOrder(seconds=seconds):
            return replace(eligibility, record=replace(eligibility.record, quarantined_until=now + seconds))


def inherited_eligibility(eligibility: WorkerEligibility) -> WorkerEligibility:
    """Return the eligibility of the next process of the same name.

    A restart ends a drain, and changes nothing else.
    """
    return (
        replace(eligibility, ordered=DesiredWorkerState.WORK)
        if eligibility.ordered is DesiredWorkerState.DRAIN
        else eligibility
    )
