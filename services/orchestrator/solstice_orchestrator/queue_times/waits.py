"""What a job may wait for, what is known of it at one moment, and the answer that `waiting.explain` makes of it: values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.forecast import Forecast, Sample
from solstice_orchestrator.scheduling.quotas import OwnerStarts
from solstice_orchestrator.scheduling.rates import Throttle
from solstice_orchestrator.scheduling.workers import WorkerView

COUNTED: Final = 10_000
"""Of those ahead so many are counted: this many means at least as many, and when such a job starts nobody can tell."""
SHOWN_HOLDERS: Final = 20
"""So many of those that hold what is waited for are named; there may be any number."""

OWNER: Final = "owner"
"""The `resource` of an owner's quota."""


class WaitReason(StrEnum):
    """What a job waits for; a closed list."""

    NOT_BEFORE = "not_before"
    """It was asked for a time that has not come."""
    NOT_PLANNED_YET = "not_planned_yet"
    """Its run's workflow has not been read."""
    NEEDS = "needs"
    CONCURRENCY_GROUP = "concurrency_group"
    APPROVAL = "approval"
    BACKOFF = "backoff"
    """The world was wrong; it is tried again at a given time."""
    NO_WORKER_FOR_LABEL = "no_worker_for_label"
    PAUSED = "paused"
    """There are workers for its label, and all of them are paused, draining or quarantined."""
    REPOSITORY_CAP = "repository_cap"
    OWNER_CAP = "owner_cap"
    SLOTS_BUSY = "slots_busy"
    RATE_LIMITED = "rate_limited"
    """As many of its label, of its repository, or of its owner, have started as may for now."""
    GOVERNOR = "governor"
    """Every worker that has a slot for it is short of something: load, disk, memory, or too many are starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job, or a whole run, that has what is waited for, or goes before."""

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
    """What is known about it in its turn, to tell when it ends; None when nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerStartsOfHour:
    """How much of its quota of starts an owner has used."""

    quota: int
    """Starts in any hour."""
    started: Sequence[OwnerStarts]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What the store knows about a job that does not run, all of one moment."""

    now: float
    """By the store's clock."""
    run_id: str
    state: JobState | None
    """None: the run has no jobs yet."""
    repository: str
    since: float
    """When it began to wait for what it waits for; at the latest when it was created."""
    reason: Reason | None = None
    job_id: str | None = None
    name: str = ""
    runs_on: str = ""
    not_before: float | None = None
    """When its run starts, if that was asked for and has not come."""
    until: float | None = None
    """When a backoff is over, of the job or of its planning."""
    detail: str = ""
    """What went wrong before a backoff."""
    needs: Sequence[UnmetNeed] = ()
    """Those that have not ended."""
    group: str | None = None
    """The concurrency group that it waits for, by the name in the workflow."""
    group_ahead: Sequence[Holder] = ()
    """The holder first."""
    group_jobs: Sequence["WaitFacts | None"] = ()
    """What is known about the jobs of the holder that have not ended, to tell when it does."""
    started_at: float | None = None
    """Of a job that runs."""
    cap: int | None = None
    """Of its repository."""
    running_of_repository: Sequence[Holder] = ()
    """On any label; only when there is a cap."""
    owner: str = ""
    """Of its repository; empty where nobody can tell, and then it has no quota."""
    owner_cap: int | None = None
    running_of_owner: Sequence[Holder] = ()
    """Likewise."""
    owner_hour: OwnerStartsOfHour | None = None
    """None: any number may start."""
    ahead: int = 0
    """Jobs of its label that start before it; not those of other repositories and owners that are at their cap or quota."""
    ahead_of_repository: int = 0
    """How many of those are of its own repository."""
    ahead_of_owner: int = 0
    """And of its owner."""
    running: Sequence[Holder] = ()
    """What runs on its label."""
    workers: Sequence[WorkerView] = ()
    """All that are registered, whatever they serve."""
    throttles: Sequence[Throttle] = ()
    """The rates that its start has to keep to."""
    recent: Sequence[Sample] = ()
    """How long the last jobs of its label ran; of a job that is blocked or runs only where it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitExplanation:
    """Why a job does not run yet."""

    reason: WaitReason
    detail: str
    """One sentence for people."""
    since: float
    ahead: int | None = None
    """How many start before it, `COUNTED` standing for more; None when it is not in line for a slot or a group."""
    until: float | None = None
    """When its time comes, a backoff is over, a quarantine ends, or a rate lets it start."""
    resource: str | None = None
    """Of what the workers are short, or which rate it is: `label`, `repository`, `owner`."""
    holders: Sequence[Holder] = ()
    """Who has what it waits for: slots, the group, its repository's or owner's cap, or its needs; at most `SHOWN_HOLDERS`."""
    expected_start: Forecast | None = None
    """If nobody more urgent comes; None when nobody can tell."""
