"""What a worker is, what people may order it, and whether it takes jobs. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.quarantine import HealthRecord, quarantined

FORGET_SECONDS: Final = 24 * 3600.0
"""A worker that has been gone for this long is not told of any more, and its eligibility is not handed on."""


class WorkerState(StrEnum):
    """What a worker does about new jobs; those that it has run on in any state."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Takes none until it is resumed."""
    DRAINING = "draining"
    """Takes none, and ends itself when its jobs have ended."""
    QUARANTINED = "quarantined"
    """Takes none until a moment: too many failed on it for want of what they need, or somebody said so."""


class Presence(StrEnum):
    """Whether a worker is there."""

    ALIVE = "alive"
    LOST = "lost"
    """No heartbeat for the length of a lease: its jobs are taken back."""
    ENDED = "ended"
    """It took its leave."""


class DesiredWorkerState(StrEnum):
    """What people want of a worker, for as long as they do not say otherwise."""

    WORK = "work"
    PAUSE = "pause"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistration:
    """What a worker says of itself when it registers."""

    worker_id: str
    """Of this process alone."""
    name: str
    """Stays when the process is started again (setting `WORKER_NAME`)."""
    host: str
    version: str
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPressure:
    """What a worker says of itself under pressure; the default: it takes what fits its slots."""

    shrunk_to: int | None = None
    """Jobs at once for now, after failures of the world or under load; None: as many as its limit."""
    refuses: Resource | None = None
    """For want of which it starts nothing."""
    refusal: str = ""
    """A sentence about that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEligibility:
    """What decides about a worker's claims, as the store keeps it."""

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
    """A worker as readers see it."""

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
    """Of a quarantine that is not over, also when the worker is paused or draining beside it."""
    failures_in_a_row: int
    started_at: float
    seen_at: float
    jobs: tuple[WorkerJob, ...]
    """What it runs, oldest first."""
    shrunk_to: int | None = None
    """Jobs at once for now, fewer than `limit` after failures of the world or under load; null: as many as `limit`."""
    refuses: Resource | None = None
    """The resource for want of which it starts nothing."""
    refusal: str = ""
    """A sentence about that."""
    condition_at: float | None = None
    """When it told of these three; null: it never did."""

    @property
    def at_once(self) -> int:
        """Jobs that it takes at once now, over all labels."""
        return self.limit if self.shrunk_to is None else min(self.limit, self.shrunk_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseOrder:
    """No new jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOrder:
    """New jobs again: ends a pause and a quarantine, and forgets the failures that led to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """No new jobs, and an end when the last has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOrder:
    """No new jobs for a while."""

    seconds: float


WorkerOrder = PauseOrder | ResumeOrder | DrainOrder | QuarantineOrder


class OrderRefusal(StrEnum):
    """Why an order is not taken; a closed list."""

    IS_DRAINING = "is_draining"
    """It may have ended this very moment, and ends for certain: start it again instead."""
    IS_GONE = "is_gone"
    """It took its leave, or was lost and a drain of it has no meaning."""


def state_at(eligibility: WorkerEligibility, now: float) -> WorkerState:
    """What the worker does; the more lasting of two reasons names it."""
    match eligibility.ordered:
        case DesiredWorkerState.DRAIN:
            return WorkerState.DRAINING
        case DesiredWorkerState.PAUSE:
            return WorkerState.PAUSED
        case DesiredWorkerState.WORK:
            return WorkerState.QUARANTINED if quarantined(eligibility.record, now) else WorkerState.ACTIVE


def may_claim(eligibility: WorkerEligibility, now: float) -> bool:
    """Whether it gets jobs, or runs to plan."""
    return state_at(eligibility, now) is WorkerState.ACTIVE


def presence_at(seen_at: float, ended_at: float | None, now: float, lease_seconds: float) -> Presence:
    """What its heartbeat tells."""
    if ended_at is not None:
        return Presence.ENDED
    return Presence.LOST if seen_at <= now - lease_seconds else Presence.ALIVE


def slots_of(worker: WorkerView, label: str) -> int:
    """At least what it uses: a worker that never registered says nothing of its slots."""
    return max(
        min(worker.slots.get(label, 0), worker.at_once), sum(job.runs_on == label for job in worker.jobs)
    )


def free_slots(worker: WorkerView, label: str) -> int:
    """How many jobs of this label it could start now, whatever it refuses."""
    used = sum(job.runs_on == label for job in worker.jobs)
    return max(0, min(worker.slots.get(label, 0) - used, worker.at_once - len(worker.jobs)))


def living(workers: Iterable[WorkerView]) -> Sequence[WorkerView]:
    """Those that are there."""
    return [worker for worker in workers if worker.presence is Presence.ALIVE]


def active(workers: Iterable[WorkerView]) -> Sequence[WorkerView]:
    """Those that take jobs."""
    return [worker for worker in living(workers) if worker.state is WorkerState.ACTIVE]


def apply_order(
    eligibility: WorkerEligibility, presence: Presence, order: WorkerOrder, now: float
) -> WorkerEligibility | OrderRefusal:
    """The eligibility after `order`, or why it stays as it is.

    A worker that is gone can still be paused, resumed and quarantined: that is for the next process of its name.
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
    """What the next process of the same name begins with: a restart ends a drain, and heals nothing else."""
    return (
        replace(eligibility, ordered=DesiredWorkerState.WORK)
        if eligibility.ordered is DesiredWorkerState.DRAIN
        else eligibility
    )
