"""Jobs that wait, in memory: what the stores keep in tables and find by indexes. `scheduling/order.py` decides, not this. Pure.

A store asks for the beginning of a label's queue in two orders: by class and turn, and by the time of waiting. Both are
kept as heaps of no more than the first job of each class and repository: those behind it cannot be next.
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
    next_turn_without,
    queue_entry,
    rank,
    turns,
)
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.simulation.bounds import SimulatedBounds

Job = TypeVar("Job")
"""Whatever the caller wants to have back when a job starts."""

TIDY: Final = 1024
"""A heap is rid of what has left once it is so long, and then whenever it has doubled."""


class QueuedJob(NamedTuple, Generic[Job]):
    """A job in its line."""

    age: int
    """Smaller for those that were planned earlier."""
    turn: int
    since: float
    job: Job


class VirtualQueues(Generic[Job]):
    """Everything that waits for a slot, and how many slots are free. The caller says who comes, ends and goes away."""

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
        """How many more jobs may start, whatever their labels."""
        self._max_wait_seconds = max_wait_seconds
        self._bounds = SimulatedBounds(limits) if limits is not None and limits.any else None
        """None: nothing but slots matters."""
        self._full: Container[str] = frozenset[str]() if self._bounds is None else self._bounds
        """Repositories of which no job may start now."""
        self._queues = {
            label: tuple(_VirtualQueue[Job](label, priority) for priority in PRIORITY_ORDER)
            for label in slots
        }
        self._by_wait = {label: _FirstJobs() for label in slots}
        self._waiting = dict.fromkeys(slots, 0)

    def serve(self, label: str) -> bool:
        """Whether there are any slots of the label."""
        return label in self._queues

    def waiting(self, label: str) -> int:
        """How many jobs wait for the label."""
        return self._waiting[label]

    @property
    def next_at(self) -> float:
        """When time alone lets somebody start, if nobody comes or ends before."""
        return math.inf if self._bounds is None else self._bounds.next_at

    def arrive(
        self, label: str, priority: Priority, repository: str, jobs: Sequence[tuple[int, Job]], now: float
    ) -> None:
        """These jobs, each with its age, begin to wait, together and in this order."""
        if self._bounds is not None:
            self._list_again(self._bounds.go_to(now))
            self._bounds.meet(repository, now)
        label_queue = self._queues[label][rank(priority)]
        entry = queue_entry(label_queue.queue(self._full))
        given = turns(entry, label_queue.next_turns.get(repository), len(jobs))
        label_queue.clock, label_queue.next_turns[repository] = entry.clock, given.stop
        self._waiting[label] += len(jobs)
        queue = label_queue.waiting.setdefault(repository, deque())
        is_first, last = not queue, queue[-1] if queue else None
        for (age, job), turn in zip(jobs, given, strict=True):
            if last is not None and last.since == now and last.age > age:
                label_queue.shuffled.add(repository)
            last = QueuedJob(age, turn, now, job)
            queue.append(last)
        if is_first or repository in label_queue.shuffled:
            self._next(label_queue, repository)

    def start(self, now: float) -> Sequence[tuple[Candidate, Job]]:
        """Whoever starts now, in dispatch order; nobody that fits is left."""
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
        """A job that was started has ended: its slot is free."""
        self._free[candidate.label] += 1
        self._limit += 1
        if self._bounds is not None:
            self._list_again(self._bounds.end(candidate, now))

    def withdraw(self, label: str, priority: Priority, repository: str, age: int) -> None:
        """A job that waits is not wanted any more, and gives back its turn."""
        label_queue = self._queues[label][rank(priority)]
        gone = _out_of(label_queue.waiting[repository], age)
        self._waiting[label] -= 1
        if repository in label_queue.next_turns:
            label_queue.next_turns[repository] = next_turn_without(
                label_queue.next_turns[repository], [gone.turn]
            )
        self._next(label_queue, repository)

    def _list_again(self, repositories: Iterable[str]) -> None:
        """Their first jobs may have been dropped while they were passed over."""
        for repository in repositories:
            for label_queues in self._queues.values():
                for label_queue in label_queues:
                    if repository in label_queue.waiting:
                        self._list(label_queue, repository)

    def _heads(self, before: float) -> Sequence[Candidate]:
        """The next of each label that has a free slot, in both of its orders."""
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
        taken = _out_of(label_queue.waiting[repository], candidate.age)
        self._free[label] -= 1
        self._limit -= 1
        self._waiting[label] -= 1
        self._next(label_queue, repository)
        return taken.job

    def _next(self, label_queue: "_VirtualQueue[Job]", repository: str) -> None:
        """Somebody else is the first of the repository."""
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
        label_queue.in_order.list(first.turn, first, label_queue.first)
        self._by_wait[label_queue.label].list(oldest.waiting_since, oldest, label_queue.oldest)


class _VirtualQueue(Generic[Job]):
    """Jobs that wait for one label in one class."""

    def __init__(self, label: str, priority: Priority) -> None:
        self.label = label
        self.priority = priority
        self.clock = 0
        self.next_turns: dict[str, int] = {}
        self.waiting: dict[str, deque[QueuedJob[Job]]] = {}
        """By repository; none of them is empty."""
        self.first: dict[str, Candidate] = {}
        """Of each repository the one with the smallest turn."""
        self.oldest: dict[str, Candidate] = {}
        """Of each repository the one that has waited longest; the older, where several began at the same moment."""
        self.shuffled: set[str] = set()
        """Repositories of which jobs that began at the same moment stand in another order than that of their ages."""
        self.in_order = _FirstJobs()

    def candidate(self, waiting: QueuedJob[Job], repository: str) -> Candidate:
        """As `scheduling/order.py` knows it."""
        age, turn, since, _ = waiting
        return Candidate(
            job_id=str(age),
            label=self.label,
            priority=self.priority,
            age=age,
            repository=repository,
            turn=turn,
            waiting_since=since,
        )

    def queue(self, excluded: Container[str]) -> QueueState:
        """What somebody who comes now finds, but for the jobs of repositories that are passed over."""
        first = self.in_order.first(excluded)
        if first is not None:
            return QueueState(
                clock=self.clock,
                first_turn=first.turn,
                first_next_turn=self.next_turns.get(first.repository, 0),
            )
        # Nobody waits: what each took is forgotten.
        largest = max(self.next_turns.values(), default=0)
        self.next_turns.clear()
        return QueueState(clock=self.clock, largest_next_turn=largest)


def _out_of(queue: deque[QueuedJob[Job]], age: int) -> QueuedJob[Job]:
    """The job of that age, which is removed; nearly always the first."""
    if queue[0].age == age:
        return queue.popleft()
    taken = next(each for each in queue if each.age == age)
    queue.remove(taken)
    return taken


class _FirstJobs:
    """Jobs that are the first of their repositories, by a key, then by age; those that are not any more go when met."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Mapping[str, Candidate]]] = []
        self._listed: set[int] = set()
        """The ages in the heap: nobody is in it twice."""
        self._tidy_at = TIDY

    def list(self, key: float, head: Candidate, firsts: Mapping[str, Candidate]) -> None:
        """`firsts`, by repository, says at every moment who is; safe to repeat."""
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
        """Whoever of a repository that is passed over is met on the way has to be listed again."""
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
