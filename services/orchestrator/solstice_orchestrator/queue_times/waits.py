"""Values for waits: reasons, the facts of one moment, and the explanation of `explanation.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.forecast import Forecast, Sample
from solstice_orchestrator.scheduling.quotas import OwnerStarts
from solstice_orchestrator.scheduling.rates import Throttle
from solstice_orchestrator.scheduling.workers import WorkerView

COUNTED: Final = 10_000
"""Jobs ahead are counted up to this number, which means at least as many.

For such a job no start is forecast.
"""
SHOWN_HOLDERS: Final = 20
"""How many holders are named at most."""

OWNER: Final = "owner"
"""The `resource` of an owner's quota."""


class WaitReason(StrEnum):
    """What a job waits for; a closed list."""

    NOT_BEFORE = "not_before"
    """Its request names a start time that has not come."""
    NOT_PLANNED_YET = "not_planned_yet"
    """Its run's workflow has not been read."""
    NEEDS = "needs"
    CONCURRENCY_GROUP = "concurrency_group"
    APPROVAL = "approval"
    BACKOFF = "backoff"
    """Infrastructure failed; it is tried again at a given time."""
    NO_WORKER_FOR_LABEL = "no_worker_for_label"
    PAUSED = "paused"
    """All workers for its label are paused, draining or quarantined."""
    OTHERS_FIRST = "others_first"
    """Its repository's jobs led to the quarantine of the workers with a slot; for some seconds they take others alone."""
    REPOSITORY_CAP = "repository_cap"
    OWNER_CAP = "owner_cap"
    SLOTS_BUSY = "slots_busy"
    RATE_LIMITED = "rate_limited"
    """Its label, repository or owner has reached its rate or quota of starts."""
    GOVERNOR = "governor"
    """Every worker with a slot for it lacks something: load, disk, memory, or too many jobs are starting."""
    PROVISIONING = "provisioning"
    """It has a slot, and its worker prepares the container or VM for it."""


@dataclass(frozen=True, slots=True)
class WaitingClass:
    """The waiting jobs of a priority class."""

    count: int
    oldest_seconds: float
    """For how long the first of them has waited."""


class WatermarkLag(NamedTuple):
    """How far all refs together are behind their newest pushes."""

    refs: int
    """How many have a pending push behind their watermark."""
    largest_seconds: float
    """The largest lag of them; 0 without any."""


NO_LAG: Final = WatermarkLag(0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job or run that has what this job waits for, or goes before it."""

    run_id: str
    job_id: str | None = None
    """None: the run as a whole."""
    name: str = ""
    repository: str = ""
    worker_id: str | None = None
    started_at: float | None = None
    """None: it has not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetNeed:
    """A job that has to end first."""

    job_id: str
    name: str
    state: JobState
    facts: "WaitFacts | None" = None
    """Its own facts, to estimate its end; None: they were not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerStartsOfHour:
    """How much of its hourly quota of starts an owner has used."""

    quota: int
    """Starts in any hour."""
    started: Sequence[OwnerStarts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What the store knows about a job at one moment."""

    now: float
    """By the store's clock."""
    run_id: str
    state: JobState | None
    """None: the run has no jobs yet."""
    repository: str
    since: float
    """When its current wait began; where that is unknown, its creation."""
    reason: Reason | None = None
    job_id: str | None = None
    name: str = ""
    runs_on: str = ""
    not_before: float | None = None
    """The start time that its request names, while it lies ahead."""
    until: float | None = None
    """When a backoff ends, of the job or of its planning."""
    detail: str = ""
    """The failure before a backoff."""
    needs: Sequence[UnmetNeed] = ()
    """Needs that have not ended."""
    group: str | None = None
    """The concurrency group that it waits for, as named in the workflow."""
    group_ahead: Sequence[Holder] = ()
    """The holder first."""
    group_jobs: Sequence["WaitFacts | None"] = ()
    """Facts about the holder's unfinished jobs, to estimate its end."""
    started_at: float | None = None
    """The start of a running job."""
    provisioning_since: float | None = None
    """Since when a running job has waited for its container or VM; None: it does not."""
    cap: int | None = None
    """The cap of its repository."""
    running_of_repository: Sequence[Holder] = ()
    """Running jobs of its repository on any label; only when there is a cap."""
    owner: str = ""
    """The owner of its repository; empty: unknown, and then without a quota."""
    owner_cap: int | None = None
    running_of_owner: Sequence[Holder] = ()
    """Running jobs of its owner on any label; only when there is a cap."""
    owner_hour: OwnerStartsOfHour | None = None
    """None: any number may start."""
    ahead: int = 0
    """Jobs of its label that start before it.

    Without those of other repositories and owners that are at their cap or quota.
    """
    ahead_of_repository: int = 0
    """How many of those are of its own repository."""
    ahead_of_owner: int = 0
    """How many of those are of its owner."""
    running: Sequence[Holder] = ()
    """Running jobs on its label."""
    workers: Sequence[WorkerView] = ()
    """All registered workers, of any label."""
    throttles: Sequence[Throttle] = ()
    """The rates that limit its start."""
    recent: Sequence[Sample] = ()
    """Durations of recent jobs of its label.

    For a blocked or running job only where they were asked for.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitExplanation:
    """Why a job does not run yet."""

    reason: WaitReason
    detail: str
    """One sentence for people."""
    since: float
    ahead: int | None = None
    """How many jobs start before it; `COUNTED` means at least as many.

    None when it does not wait for a slot or a group.
    """
    until: float | None = None
    """When its start time comes, a backoff or quarantine ends, a rate allows it, or others no longer start alone."""
    resource: str | None = None
    """What the workers lack, or which rate it is: `label`, `repository`, `owner`."""
    holders: Sequence[Holder] = ()
    """The holders of what it waits for; at most `SHOWN_HOLDERS`.

    They hold slots, the group, a cap of its repository or owner, or are its needs.
    """
    expected_start: Forecast | None = None
    """The expected start if no more urgent job comes; None: there is no forecast."""
