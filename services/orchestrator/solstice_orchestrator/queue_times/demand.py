"""How much work each label has, and how many slots it needs, for autoscalers. Pure.

A slot does not help a job that waits for its needs, its concurrency group, approval, another try, the cap of its
repository or owner, or a rate: those jobs are counted apart.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import MappingProxyType
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.queue_times.forecast import FEW_SAMPLES, BusySlot, Sample, remaining
from solstice_orchestrator.scheduling.caps import unused
from solstice_orchestrator.scheduling.quotas import owner_of, running_of, startable
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope
from solstice_orchestrator.scheduling.starts import StartBudget
from solstice_orchestrator.scheduling.workers import WorkerView, active, slots_of

TARGET_SECONDS: Final = 300.0
LEAST_SECONDS: Final = 0.001
"""A job takes longer than that, also when a clock was set back."""
_HELD_BACK_STATES: Final = (JobState.BLOCKED, JobState.APPROVAL, JobState.BACKOFF)
HELD_BACK: Final = (
    *(state.value for state in _HELD_BACK_STATES),
    "repository_cap",
    "owner_cap",
    "rate_limited",
)
"""Why jobs cannot start, even with more slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJobs:
    """The jobs of one repository that wait for a slot of one label."""

    label: str
    repository: str
    jobs: int
    oldest: float
    """When the first of them began to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that has a slot."""

    label: str
    repository: str
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandFacts:
    """What the store knows at one moment."""

    now: float
    """By the store's clock."""
    waiting: Sequence[WaitingJobs] = ()
    running: Sequence[RunningJob] = ()
    """Running jobs of all labels, because caps count them all."""
    held_back: Mapping[tuple[JobState, str], int] = field(default_factory=lambda: MappingProxyType({}))
    """Numbers of jobs in BLOCKED, APPROVAL or BACKOFF, by state and label."""
    delayed: Mapping[str | None, int] = field(default_factory=lambda: MappingProxyType({}))
    """Runs that start within the target, by the label that their requests name."""
    workers: Sequence[WorkerView] = ()
    starts: StartBudget = field(default_factory=StartBudget)
    """The limits besides slots, and what counts against them."""
    recent: Mapping[str, Sequence[Sample]] = field(default_factory=lambda: MappingProxyType({}))
    """How long the last jobs of each label ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The work of one label, or of several together."""

    waiting: int
    """Jobs that would start within the target with enough slots."""
    running: int
    slots: int
    """Slots of active workers."""
    wanted_slots: int
    """Slots that finish the work within the target; at least the running jobs."""
    expected_work_seconds: float
    """The work for one slot: the waiting jobs, and the rest of the running ones."""
    oldest_wait_seconds: float
    """0 when no job waits."""
    delayed: int
    """Runs that start within the target, as far as their requests name a label."""
    samples: int
    """Recent jobs behind this estimate; without any, a job is assumed to last as long as the target."""
    held_back: Mapping[str, int]
    """Jobs that more slots would not help, by one of `HELD_BACK`."""


def demands(
    facts: DemandFacts, *, target_seconds: float = TARGET_SECONDS, label: str | None = None
) -> Mapping[str, Demand]:
    """Return the demand of every label with waiting jobs, running jobs or slots.

    With `label`, of that label alone, known or not.
    """
    return {name: _demand(facts, name, target_seconds) for name in ([label] if label else _labels(facts))}


def total_demand(each: Iterable[Demand], delayed: int) -> Demand:
    """Return the sum of several labels; `delayed` runs are counted without regard to labels."""
    demands = list(each)
    return Demand(
        waiting=sum(one.waiting for one in demands),
        running=sum(one.running for one in demands),
        slots=sum(one.slots for one in demands),
        wanted_slots=sum(one.wanted_slots for one in demands),
        expected_work_seconds=sum(one.expected_work_seconds for one in demands),
        oldest_wait_seconds=max((one.oldest_wait_seconds for one in demands), default=0.0),
        delayed=delayed,
        samples=sum(one.samples for one in demands),
        held_back={why: sum(one.held_back[why] for one in demands) for why in HELD_BACK},
    )


def jobs_per_second(facts: DemandFacts) -> float | None:
    """Return how many jobs all workers together end in a second when they are full.

    That follows the slots, which shrink under pressure, and how long the last jobs of each label ran. None: no job waits or
    runs, or none of such a label has ended yet.
    """
    labels = {each.label for each in facts.waiting} | {each.label for each in facts.running}
    if not labels or any(not facts.recent.get(label) for label in labels):
        return None
    return sum(
        sum(slots_of(worker, label) for worker in active(facts.workers))
        / max(fmean(sample.seconds for sample in facts.recent[label]), LEAST_SECONDS)
        for label in labels
    )


def _labels(facts: DemandFacts) -> Sequence[str]:
    named = {each.label for each in facts.waiting} | {each.label for each in facts.running}
    named |= {label for _, label in facts.held_back} | {label for label in facts.delayed if label is not None}
    return sorted(named | {label for worker in active(facts.workers) for label in worker.slots})


def _demand(facts: DemandFacts, label: str, target: float) -> Demand:
    lasting = _UsualDurations(facts.recent.get(label, ()), target)
    waiting = [each for each in facts.waiting if each.label == label]
    running = [each for each in facts.running if each.label == label]
    bounded = _startable(facts, label, waiting, target)
    # A job that lasts longer than the target uses no more than one slot.
    left = [lasting.left(each.repository, facts.now - each.started_at) for each in running]
    load = sum(jobs * min(lasting.usual(repository), target) for repository, jobs in bounded.starts.items())
    load += sum(min(seconds, target) for seconds in left)
    work = sum(jobs * lasting.usual(repository) for repository, jobs in bounded.starts.items())
    oldest = min((each.oldest for each in waiting), default=facts.now)
    return Demand(
        waiting=sum(bounded.starts.values()),
        running=len(running),
        slots=sum(slots_of(worker, label) for worker in active(facts.workers)),
        # A rounding error of binary fractions is no slot.
        wanted_slots=max(len(running), math.ceil(round(load / target, 6))),
        expected_work_seconds=work + sum(left),
        oldest_wait_seconds=max(0.0, facts.now - oldest),
        delayed=facts.delayed.get(label, 0),
        samples=lasting.samples,
        held_back={
            **{state.value: facts.held_back.get((state, label), 0) for state in _HELD_BACK_STATES},
            "repository_cap": bounded.capped,
            "owner_cap": bounded.owner_capped,
            "rate_limited": bounded.limited,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Startable:
    """Waiting jobs of a label that could have a slot, by repository, and the others."""

    starts: Mapping[str, int]
    capped: int
    owner_capped: int
    limited: int


def _startable(facts: DemandFacts, label: str, waiting: Sequence[WaitingJobs], target: float) -> _Startable:
    """Count the waiting jobs of a label that could start with enough slots.

    What a repository or owner may still start counts for each label: which of them gets it is not known beforehand.
    """
    limits = facts.starts.limits
    running = Counter(job.repository for job in facts.running)
    owners = {owner_of(each.repository) for each in waiting} - {""}
    of_repositories = unused(limits.caps, running, (each.repository for each in waiting))
    of_owners = dict(unused(limits.quotas.slots, running_of(running), owners))
    rated = {
        throttle.key: max(0, math.floor(throttle.tokens + throttle.rate.per_second * target))
        for throttle in facts.starts.throttles(_start_keys(label, waiting))
    }
    of_hour = {
        owner: startable(facts.starts.started.get(owner, ()), quota, facts.now, target)
        for owner in owners
        if (quota := limits.quotas.starts_per_hour.cap(owner)) is not None
    }
    of_label = rated.get(BucketKey(BucketScope.LABEL, label))
    starts: dict[str, int] = {}
    capped = owner_capped = limited = 0
    # The longest wait goes first: those jobs are the next to be overdue.
    for each in sorted(waiting, key=lambda each: (each.oldest, each.repository)):
        owner = owner_of(each.repository)
        within_cap = min(each.jobs, of_repositories.get(each.repository, each.jobs))
        within_owner = min(within_cap, of_owners.get(owner, within_cap))
        within_rate = min(
            within_owner,
            rated.get(BucketKey(BucketScope.REPOSITORY, each.repository), within_owner),
            of_hour.get(owner, within_owner),
        )
        if of_label is not None:
            within_rate = min(within_rate, of_label)
            of_label -= within_rate
        for left in (of_owners, of_hour):
            if owner in left:
                left[owner] -= within_rate
        capped += each.jobs - within_cap
        owner_capped += within_cap - within_owner
        limited += within_owner - within_rate
        starts[each.repository] = within_rate
    return _Startable(starts=starts, capped=capped, owner_capped=owner_capped, limited=limited)


def _start_keys(label: str, waiting: Iterable[WaitingJobs]) -> Sequence[BucketKey]:
    """Return the keys of the buckets that limit their starts."""
    repositories = sorted({each.repository for each in waiting})
    return [
        BucketKey(BucketScope.LABEL, label),
        *(BucketKey(BucketScope.REPOSITORY, name) for name in repositories),
    ]


class _UsualDurations:
    """How long jobs of a label usually last.

    As the recent jobs of their repository did, if there are enough, else as all of the label did.
    """

    def __init__(self, recent: Sequence[Sample], otherwise: float) -> None:
        by_repository: defaultdict[str, list[float]] = defaultdict(list)
        for sample in recent:
            by_repository[sample.repository].append(sample.seconds)
        self.samples = len(recent)
        self._recent = recent
        self._otherwise = fmean(sample.seconds for sample in recent) if recent else otherwise
        self._own = {name: fmean(own) for name, own in by_repository.items() if len(own) >= FEW_SAMPLES}

    def usual(self, repository: str) -> float:
        """Return the seconds that a job of the repository takes."""
        return self._own.get(repository, self._otherwise)

    def left(self, repository: str, ran: float) -> float:
        """Return the seconds that a job still takes after it `ran` for so long."""
        if not self._recent:
            return max(0.0, self._otherwise - ran)
        return remaining(BusySlot(repository=repository, for_seconds=max(0.0, ran)), self._recent)
