"""A model of waiting jobs in memory, for tests of `scheduling/order.py`.

It uses the order as the stores do.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import (
    Candidate,
    ClaimExclusions,
    QueueState,
    RemainingStarts,
    assign,
    exclusions_of,
    in_order,
    next_tag_without,
    overdue,
    queue_entry,
    remaining_after,
    start_tags,
)
from solstice_orchestrator.scheduling.quotas import OwnerStarts, Quotas, owner_of
from solstice_orchestrator.scheduling.rates import BucketKey, BucketScope, RateBucket, StartRates
from solstice_orchestrator.scheduling.starts import StartBudget, StartLimits

QueueKey = tuple[str, Priority]


@dataclass
class SchedulerModel:
    """Jobs arrive, start, end, get lost and are cancelled, only when called."""

    caps: Caps = field(default_factory=Caps)
    quotas: Quotas = field(default_factory=Quotas)
    rates: StartRates = field(default_factory=StartRates)
    max_wait_seconds: float = 1800.0
    now: float = 0.0
    waiting: list[Candidate] = field(default_factory=list)
    running: dict[str, tuple[str, Candidate]] = field(default_factory=dict)
    """The worker that has each job, by job."""
    started: list[Candidate] = field(default_factory=list)
    clocks: defaultdict[QueueKey, int] = field(default_factory=lambda: defaultdict(int))
    next_tags: dict[tuple[QueueKey, str], int] = field(default_factory=dict)
    started_of: defaultdict[str, list[OwnerStarts]] = field(default_factory=lambda: defaultdict(list))
    """The starts of each owner."""
    buckets: dict[BucketKey, RateBucket] = field(default_factory=dict)
    arrivals: int = 0

    def arrive(
        self, repository: str, count: int = 1, *, label: str = "linux", priority: Priority = Priority.DEFAULT
    ) -> Sequence[str]:
        """The ids of `count` jobs that begin to wait."""
        queue = (label, priority)
        entry = queue_entry(self._queue(queue))
        given = start_tags(entry, self.next_tags.get((queue, repository)), count)
        self.clocks[queue] = entry.clock
        self.next_tags[queue, repository] = given.stop
        new = [
            Candidate(
                job_id=f"{repository}-{self.arrivals + number}",
                label=label,
                priority=priority,
                age=self.arrivals + number,
                repository=repository,
                owner=owner_of(repository),
                start_tag=tag,
                waiting_since=self.now,
            )
            for number, tag in enumerate(given, start=1)
        ]
        self.arrivals += count
        self.waiting += new
        return [each.job_id for each in new]

    def claim(self, worker: str, free: Mapping[str, int], limit: int = 32) -> Sequence[Candidate]:
        """What the worker starts, in order.

        Every query is limited to what could start, as a store's is.
        """
        left, chosen = self.start_limits().fit(free), list[Candidate]()
        while True:
            more = self._remaining_starts()
            found = self._first_jobs(left, limit - len(chosen), exclusions_of(more))
            picked = assign(
                found, left, limit - len(chosen), overdue_before=self._overdue_before, remaining=more
            )
            for each in picked:
                left[each.label] -= 1
                self.waiting.remove(each)
                self.running[each.job_id] = (worker, each)
            self._count(picked)
            chosen += picked
            self.started += picked
            if len(picked) == len(found) or exclusions_of(remaining_after(more, picked)) == exclusions_of(
                more
            ):
                return chosen

    def end(self, job_id: str) -> None:
        del self.running[job_id]

    def lose(self, worker: str) -> None:
        """The worker's jobs wait again and keep their `start_tag`."""
        for job_id, (holder, job) in list(self.running.items()):
            if holder == worker:
                del self.running[job_id]
                self.waiting.append(replace(job, waiting_since=self.now))

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Cancel waiting jobs."""
        gone = [each for each in self.waiting if each.job_id in set(job_ids)]
        self.waiting = [each for each in self.waiting if each not in gone]
        for key, tag in self.next_tags.items():
            given_up = {
                each.start_tag for each in gone if ((each.label, each.priority), each.repository) == key
            }
            self.next_tags[key] = next_tag_without(tag, given_up)

    def running_of(self) -> Counter[str]:
        """How many jobs of each repository run."""
        return Counter(job.repository for _, job in self.running.values())

    def start_limits(self) -> StartBudget:
        """The start limits, as a store computes them."""
        return StartBudget(
            limits=StartLimits(caps=self.caps, quotas=self.quotas, rates=self.rates),
            running=self.running_of(),
            started=self.started_of,
            buckets=self.buckets,
            now=self.now,
        )

    def is_overdue(self, job: Candidate) -> bool:
        return overdue(job.waiting_since, self.now, self.max_wait_seconds)

    @property
    def _overdue_before(self) -> float:
        return self.now - self.max_wait_seconds

    def _remaining_starts(self) -> RemainingStarts:
        return self.start_limits().remaining(
            {each.repository for each in self.waiting}, {each.owner for each in self.waiting}
        )

    def _count(self, picked: Sequence[Candidate]) -> None:
        start_limits = self.start_limits()
        for scope, name, amount, at, _ in start_limits.spent(picked, self.now):
            self.buckets[BucketKey(BucketScope(scope), name)] = RateBucket(amount, at)
        for owner, until, starts in start_limits.counted(picked, self.now):
            self.started_of[owner].append(OwnerStarts(until, starts))

    def _queue(self, queue: QueueKey) -> QueueState:
        without = exclusions_of(self._remaining_starts())
        waiting = [
            each
            for each in self.waiting
            if (each.label, each.priority) == queue and not _is_passed_over(each, without)
        ]
        first = min(waiting, key=lambda each: (each.start_tag, each.age), default=None)
        return QueueState(
            clock=self.clocks[queue],
            first_tag=first.start_tag if first else None,
            first_next_tag=self.next_tags[queue, first.repository] if first else 0,
            largest_next_tag=max((tag for (of, _), tag in self.next_tags.items() if of == queue), default=0),
        )

    def _first_jobs(self, free: Mapping[str, int], limit: int, without: ClaimExclusions) -> list[Candidate]:
        found: list[Candidate] = []
        for label, slots in free.items():
            of_label = [
                each for each in self.waiting if each.label == label and not _is_passed_over(each, without)
            ]
            found += in_order(of_label, self._overdue_before)[: max(0, min(slots, limit))]
        return found


def _is_passed_over(job: Candidate, without: ClaimExclusions) -> bool:
    return job.repository in without.repositories or job.owner in without.owners
