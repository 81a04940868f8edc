"""A small world of waiting jobs in memory that does with `scheduling/order.py` what the stores do with it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from solstice_common.messages import Priority
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import (
    Candidate,
    PassedOver,
    Queue,
    Room,
    assign,
    enter,
    full,
    in_order,
    next_turn_without,
    overdue,
    room_after,
    turns,
)
from solstice_orchestrator.scheduling.quotas import Quotas, Started, owner_of
from solstice_orchestrator.scheduling.rates import Bucket, Key, Scope, StartRates
from solstice_orchestrator.scheduling.starts import Limits, Starts

QueueKey = tuple[str, Priority]


@dataclass
class WaitingRoom:
    """Jobs come, start, end, get lost and are cancelled; nothing here decides anything by itself."""

    caps: Caps = field(default_factory=Caps)
    quotas: Quotas = field(default_factory=Quotas)
    rates: StartRates = field(default_factory=StartRates)
    max_wait_seconds: float = 1800.0
    now: float = 0.0
    waiting: list[Candidate] = field(default_factory=list)
    running: dict[str, tuple[str, Candidate]] = field(default_factory=dict)
    """By job: the worker that has it."""
    started: list[Candidate] = field(default_factory=list)
    clocks: defaultdict[QueueKey, int] = field(default_factory=lambda: defaultdict(int))
    next_turns: dict[tuple[QueueKey, str], int] = field(default_factory=dict)
    started_of: defaultdict[str, list[Started]] = field(default_factory=lambda: defaultdict(list))
    """By owner."""
    buckets: dict[Key, Bucket] = field(default_factory=dict)
    arrivals: int = 0

    def arrive(
        self, repository: str, count: int = 1, *, label: str = "linux", priority: Priority = Priority.DEFAULT
    ) -> Sequence[str]:
        """The ids of `count` jobs that begin to wait."""
        queue = (label, priority)
        entry = enter(self._queue(queue))
        given = turns(entry, self.next_turns.get((queue, repository)), count)
        self.clocks[queue] = entry.clock
        self.next_turns[queue, repository] = given.stop
        new = [
            Candidate(
                job_id=f"{repository}-{self.arrivals + number}",
                label=label,
                priority=priority,
                age=self.arrivals + number,
                repository=repository,
                owner=owner_of(repository),
                turn=turn,
                waiting_since=self.now,
            )
            for number, turn in enumerate(given, start=1)
        ]
        self.arrivals += count
        self.waiting += new
        return [each.job_id for each in new]

    def claim(self, worker: str, free: Mapping[str, int], limit: int = 32) -> Sequence[Candidate]:
        """What the worker starts, in order; every question is cut off at what could start, as a store's is."""
        left, chosen = self.standing().fit(free), list[Candidate]()
        while True:
            more = self._room()
            found = self._first_of_each(left, limit - len(chosen), full(more))
            picked = assign(found, left, limit - len(chosen), overdue_before=self._overdue_before, room=more)
            for each in picked:
                left[each.label] -= 1
                self.waiting.remove(each)
                self.running[each.job_id] = (worker, each)
            self._count(picked)
            chosen += picked
            self.started += picked
            if len(picked) == len(found) or full(room_after(more, picked)) == full(more):
                return chosen

    def end(self, job_id: str) -> None:
        del self.running[job_id]

    def lose(self, worker: str) -> None:
        """What the worker had waits again, with the turns it had."""
        for job_id, (holder, job) in list(self.running.items()):
            if holder == worker:
                del self.running[job_id]
                self.waiting.append(replace(job, waiting_since=self.now))

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Jobs that wait are not wanted any more."""
        gone = [each for each in self.waiting if each.job_id in set(job_ids)]
        self.waiting = [each for each in self.waiting if each not in gone]
        for key, turn in self.next_turns.items():
            given_up = {each.turn for each in gone if ((each.label, each.priority), each.repository) == key}
            self.next_turns[key] = next_turn_without(turn, given_up)

    def running_of(self) -> Counter[str]:
        """How many jobs of each repository run."""
        return Counter(job.repository for _, job in self.running.values())

    def standing(self) -> Starts:
        """As a store finds it."""
        return Starts(
            limits=Limits(caps=self.caps, quotas=self.quotas, rates=self.rates),
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

    def _room(self) -> Room:
        return self.standing().room(
            {each.repository for each in self.waiting}, {each.owner for each in self.waiting}
        )

    def _count(self, picked: Sequence[Candidate]) -> None:
        standing = self.standing()
        for scope, name, amount, at, _ in standing.spent(picked, self.now):
            self.buckets[Key(Scope(scope), name)] = Bucket(amount, at)
        for owner, until, starts in standing.counted(picked, self.now):
            self.started_of[owner].append(Started(until, starts))

    def _queue(self, queue: QueueKey) -> Queue:
        without = full(self._room())
        waiting = [
            each
            for each in self.waiting
            if (each.label, each.priority) == queue and not _is_passed_over(each, without)
        ]
        first = min(waiting, key=lambda each: (each.turn, each.age), default=None)
        return Queue(
            clock=self.clocks[queue],
            first_turn=first.turn if first else None,
            first_next_turn=self.next_turns[queue, first.repository] if first else 0,
            largest_next_turn=max(
                (turn for (of, _), turn in self.next_turns.items() if of == queue), default=0
            ),
        )

    def _first_of_each(self, free: Mapping[str, int], limit: int, without: PassedOver) -> list[Candidate]:
        found: list[Candidate] = []
        for label, slots in free.items():
            of_label = [
                each for each in self.waiting if each.label == label and not _is_passed_over(each, without)
            ]
            found += in_order(of_label, self._overdue_before)[: max(0, min(slots, limit))]
        return found


def _is_passed_over(job: Candidate, without: PassedOver) -> bool:
    return job.repository in without.repositories or job.owner in without.owners
