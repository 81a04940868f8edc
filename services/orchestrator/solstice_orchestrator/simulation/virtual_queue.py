"""Queues of waiting jobs in memory, as the stores keep them in tables. Pure.

`scheduling/order.py` decides. A store reads the beginning of a label's queue in two orders: by class and start tag, and by
the time of waiting. Both are kept as heaps of only the first job of each class and repository: the jobs behind it
cannot be next.
"""

import heapq
import math
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.order import (
    PRIORITY_ORDER,
    Candidate,
    QueueState,
    assign,
    next_tag_without,
    queue_entry,
    rank,
    start_tags,
)
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.bounds import SimulatedBounds

Job = TypeVar("Job")
"""The caller's value for a job, returned when the job starts."""

TIDY: Final = 1024
"""The heap length at which stale entries are first removed; then at each doubling."""


class QueuedJob(NamedTuple, Generic[Job]):
    """A job in a queue."""

    age: int
    """Smaller for jobs that were planned earlier."""
    start_tag: int
    since: float
    job: Job


class VirtualQueues(Generic[Job]):
    """All jobs that wait for a slot, and the free slots.

    The caller reports arrivals, ends and withdrawals.
    """

    def __init__(
        self,
        slots: Mapping[str, int],
        *,
        limit: int,
        limits: StartLimits | None = None,
        max_wait_seconds: float,
    ) -> None:
        self._free = dict(slots)
        self._limit = limit
        """How many more jobs may start, over all labels."""
        self._max_wait_seconds = max_wait_seconds
        self._bounds = SimulatedBounds(limits) if limits is not None and limits.any else None
        """None: there is no limit besides slots."""
        self._full: Container[str] = frozenset[str]() if self._bounds is None else self._bounds
        """Repositories of which no job may start now."""
        self._queues = {
            label: tuple(_VirtualQueue[Job](label, priority) for priority in PRIORITY_ORDER)
            for label in slots
        }
        self._by_wait = {label: _FirstJobs() for label in slots}
        self._waiting = dict.fromkeys(slots, 0)

    def serve(self, label: str) -> bool:
        """Return whether the label has slots."""
        return label in self._queues

    def waiting(self, label: str) -> int:
        """Return how many jobs wait for the label."""
        return self._waiting[label]

    @property
    def next_at(self) -> float:
        """When a limit next allows a start, if no job comes or ends before."""
        return math.inf if self._bounds is None else self._bounds.next_at

    def arrive(
        self, label: str, priority: Priority, repository: str, jobs: Sequence[tuple[int, Job]], now: float
    ) -> None:
        """Add jobs, each with its age, that begin to wait together in this order."""
        if self._bounds is not None:
            self._list_again(self._bounds.go_to(now))
            self._bounds.meet(repository, now)
        label_queue = self._queues[label][rank(priority)]
        entry = queue_entry(label_queue.queue(self._full))
        new_tags = start_tags(entry, label_queue.next_tags.get(repository), len(jobs))
        label_queue.clock, label_queue.next_tags[repository] = entry.clock, new_tags.stop
        self._waiting[label] += len(jobs)
        queue = label_queue.waiting.setdefault(repository, deque())
        is_first, last = not queue, queue[-1] if queue else None
        for (age, job), tag in zip(jobs, new_tags, strict=True):
            if last is not None and last.since == now and last.age > age:
                label_queue.shuffled.add(repository)
            last = QueuedJob(age, tag, now, job)
            queue.append(last)
        if is_first or repository in label_queue.shuffled:
            self._next(label_queue, repository)

    def start(self, now: float) -> Sequence[tuple[Candidate, Job]]:
        """Start all jobs that can start now; return them in dispatch order."""
        if self._bounds is not None:
            self._list_again(self._bounds.go_to(now))
        before = now - self._max_wait_seconds
        started: list[tuple[Candidate, Job]] = []
        while self._limit > 0 and (heads := self._heads(before)):
            (chosen,) = assign(heads, self._free, 1, overdue_before=before)
            started.append((chosen, self._take(chosen)))
            if self._bounds is not None:
                self._bounds.start(chosen, now)
        return started

    def end(self, candidate: Candidate, now: float) -> None:
        """Record the end of a started job: its slot is free."""
        self._free[candidate.label] += 1
        self._limit += 1
        if self._bounds is not None:
            self._list_again(self._bounds.end(candidate, now))

    def withdraw(self, label: str, priority: Priority, repository: str, age: int) -> None:
        """Remove a waiting job, and give back its start tag."""
        label_queue = self._queues[label][rank(priority)]
        gone = _out_of(label_queue.waiting[repository], age)
        self._waiting[label] -= 1
        if repository in label_queue.next_tags:
            label_queue.next_tags[repository] = next_tag_without(
                label_queue.next_tags[repository], [gone.start_tag]
            )
        self._next(label_queue, repository)

    def _list_again(self, repositories: Iterable[str]) -> None:
        """List the first jobs of these repositories again.

        They may have been dropped while the repositories were passed over.
        """
        for repository in repositories:
            for label_queues in self._queues.values():
                for label_queue in label_queues:
                    if repository in label_queue.waiting:
                        self._list(label_queue, repository)

    def _heads(self, before: float) -> Sequence[Candidate]:
        """Return the next job of each label with a free slot, in both orders."""
        heads = []
        for label, free in self._free.items():
            if free <= 0 or not self._waiting[label]:
                continue
            if self._bounds is not None and self._bounds.shut_label(label):
                continue
            late = self._by_wait[label].first(self._full)
            if late is not None and late.waiting_since < before:
                heads.append(late)
            for label_queue in self._queues[label]:
                if label_queue.waiting and (first := label_queue.in_order.first(self._full)) is not None:
                    if first not in heads:
                        heads.append(first)
                    break
        return heads

    def _take(self, candidate: Candidate) -> Job:
        label, repository = candidate.label, candidate.repository
        label_queue = self._queues[label][rank(candidate.priority)]
        first = _out_of(label_queue.waiting[repository], candidate.age)
        self._free[label] -= 1
        self._limit -= 1
        self._waiting[label] -= 1
        self._next(label_queue, repository)
        return first.job

    def _next(self, label_queue: "_VirtualQueue[Job]", repository: str) -> None:
        """Update the first job of the repository."""
        queue = label_queue.waiting[repository]
        if not queue:
            del label_queue.waiting[repository], label_queue.first[repository], label_queue.oldest[repository]
            label_queue.shuffled.discard(repository)
            return
        first = oldest = queue[0]
        if repository in label_queue.shuffled:
            oldest = min(takewhile(lambda each: each.since == first.since, queue), key=lambda each: each.age)
        label_queue.first[repository] = label_queue.candidate(first, repository)
        label_queue.oldest[repository] = (
            label_queue.first[repository] if oldest is first else label_queue.candidate(oldest, repository)
        )
        self._list(label_queue, repository)

    def _list(self, label_queue: "_VirtualQueue[Job]", repository: str) -> None:
        first, oldest = label_queue.first[repository], label_queue.oldest[repository]
        label_queue.in_order.list(first.start_tag, first, label_queue.first)
        self._by_wait[label_queue.label].list(oldest.waiting_since, oldest, label_queue.oldest)


class _VirtualQueue(Generic[Job]):
    """Jobs that wait for one label in one class."""

    def __init__(self, label: str, priority: Priority) -> None:
        self.label = label
        self.priority = priority
        self.clock = 0
        self.next_tags: dict[str, int] = {}
        self.waiting: dict[str, deque[QueuedJob[Job]]] = {}
        """Waiting jobs by repository; no queue is empty."""
        self.first: dict[str, Candidate] = {}
        """The job with the smallest start tag, by repository."""
        self.oldest: dict[str, Candidate] = {}
        """The job with the longest wait, by repository; among equal waits the older one."""
        self.shuffled: set[str] = set()
        """Repositories whose jobs that began together are not in the order of their ages."""
        self.in_order = _FirstJobs()

    def candidate(self, waiting: QueuedJob[Job], repository: str) -> Candidate:
        """Return the job as a candidate of `scheduling/order.py`."""
        age, tag, since, _ = waiting
        return Candidate(
            job_id=str(age),
            label=self.label,
            priority=self.priority,
            age=age,
            repository=repository,
            start_tag=tag,
            waiting_since=since,
        )

    def queue(self, excluded: Container[str]) -> QueueState:
        """Return the queue state for a new job, without the jobs of excluded repositories."""
        first = self.in_order.first(excluded)
        if first is not None:
            return QueueState(
                clock=self.clock,
                first_tag=first.start_tag,
                first_next_tag=self.next_tags.get(first.repository, 0),
            )
        # No job waits: past use is forgotten.
        largest = max(self.next_tags.values(), default=0)
        self.next_tags.clear()
        return QueueState(clock=self.clock, largest_next_tag=largest)


def _out_of(queue: deque[QueuedJob[Job]], age: int) -> QueuedJob[Job]:
    """Remove and return the job of that age; nearly always the first."""
    if queue[0].age == age:
        return queue.popleft()
    first = next(each for each in queue if each.age == age)
    queue.remove(first)
    return first


class _FirstJobs:
    """A heap of the first jobs of repositories, by a key, then by age.

    Jobs that are no longer first are removed when they are met.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Mapping[str, Candidate]]] = []
        self._listed: set[int] = set()
        """The ages in the heap, each once."""
        self._tidy_at = TIDY

    def list(self, key: float, head: Candidate, firsts: Mapping[str, Candidate]) -> None:
        """Add a first job; safe to repeat.

        `firsts` is the current first job of each repository.
        """
        if head.age in self._listed:
            return
        if len(self._heap) >= self._tidy_at:
            self._heap = [entry for entry in self._heap if _is_first(*entry[1:])]
            heapq.heapify(self._heap)
            self._listed = {entry[1] for entry in self._heap}
            self._tidy_at = max(TIDY, 2 * len(self._heap))
        self._listed.add(head.age)
        heapq.heappush(self._heap, (key, head.age, head.repository, firsts))

    def first(self, excluded: Container[str]) -> Candidate | None:
        """Return the first valid job; None: there is none.

        A job of an excluded repository that is met on the way is removed, and must be listed again.
        """
        while self._heap:
            _, age, repository, firsts = self._heap[0]
            if repository not in excluded and _is_first(age, repository, firsts):
                return firsts[repository]
            heapq.heappop(self._heap)
            self._listed.discard(age)
        return None


def _is_first(age: int, repository: str, firsts: Mapping[str, Candidate]) -> bool:
    first = firsts.get(repository)
    return first is not None and first.age == age
