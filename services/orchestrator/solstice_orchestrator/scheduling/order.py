"""Which waiting jobs start next, by class, fairness and waiting time. Pure.

The order of one label: first the *overdue* jobs of any class, the longest wait first; then by priority class; within a
class by the *start tag*, a time in virtual time (start-time fair queueing: Goyal, Vin and Cheng 1996;
docs/decisions/0010); with equal ones the older job. Repositories that wait for the same label and class have their jobs
interleaved one by one, and a newly arrived repository is next. A job gets its start tag once, when it begins to
wait, so that a claim reads only the beginning of an index, however many jobs wait.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from solstice_common.messages import Priority
from solstice_common.values.value import Value

PRIORITY_ORDER: Final = tuple(Priority)
"""Most urgent first."""

MAX_WAIT_SECONDS: Final = 1800.0
"""A job that has waited longer is overdue; the default of the setting `MAX_WAIT_SECONDS`."""

LONG_QUEUE: Final = 10
"""A repository with so many waiting jobs lets newly arrived repositories pass."""


def rank(priority: Priority) -> int:
    """Return the rank of a class, 0 for the most urgent."""
    return PRIORITY_ORDER.index(priority)


# -- a job begins to wait ------------------------------------------------------------------------------------------


class QueueState(Value, frozen=True, kw_only=True):
    """The state of a label and class on which a new job's start tag depends.

    The *first* is the job with the smallest start tag (then age) among those whose repository may start more.
    """

    clock: int = 0
    """The clock of the last `QueueEntry`; the store keeps one per label and class."""
    first_tag: int | None = None
    """None when no job waits."""
    first_next_tag: int = 0
    """The `next_tag` of the first job's repository, behind all its waiting jobs."""
    largest_next_tag: int = 0
    """The largest of all repositories; read only when no job waits."""


class QueueEntry(Value, frozen=True, kw_only=True):
    """Where jobs of a newly arrived repository enter the queue."""

    start_tag: int
    clock: int
    """Kept for the next entry; it only grows, so that newly arrived repositories do not overtake each other."""


def queue_entry(queue: QueueState) -> QueueEntry:
    """Return the entry for a queue in this state.

    A newly arrived repository is level with the first job, so it is behind all that came earlier in this round. Where
    the first job's repository has a long queue, the new one enters just before that job. When no job waits, past use is
    forgotten: a repository that used more while others were absent owes them nothing.
    """
    if queue.first_tag is None:
        clock = max(queue.clock, queue.largest_next_tag)
        return QueueEntry(start_tag=clock + 1, clock=clock)
    clock = max(queue.clock, queue.first_tag - 1)
    is_long = queue.first_next_tag - queue.first_tag >= LONG_QUEUE
    return QueueEntry(start_tag=clock if is_long else max(clock, queue.first_tag), clock=clock)


def start_tags(entry: QueueEntry, next_tag: int | None, count: int) -> range:
    """Return the start tags of `count` jobs of one repository, in their order.

    `next_tag` is the repository's own, None when it has none in this label and class. Its new one is the range's
    `stop`.
    """
    first = entry.start_tag if next_tag is None else max(entry.start_tag, next_tag)
    return range(first, first + count)


def next_tag_without(next_tag: int, given_up: Collection[int]) -> int:
    """Return a repository's next start tag after some waiting jobs were cancelled.

    `given_up` are their start tags. So jobs that never ran cost nothing. Only the newest start tags can be given back: an older one leaves a gap, which costs
    the repository one place.
    """
    given_up = frozenset(given_up)
    while next_tag - 1 in given_up:
        next_tag -= 1
    return next_tag


# -- a slot is free ------------------------------------------------------------------------------------------------


class Candidate(Value, frozen=True, kw_only=True):
    """A job that could start."""

    job_id: str
    label: str
    priority: Priority
    age: int
    """Smaller for jobs that came earlier."""
    repository: str = ""
    owner: str = ""
    """Empty: no owner, so no owner's limit bounds it."""
    start_tag: int = 0
    waiting_since: float = math.inf
    """When it began to wait for a slot, in seconds since the epoch."""


class RemainingStarts(Value, frozen=True, kw_only=True):
    """How many more jobs of some repositories and owners may start.

    Any number may start of those that it does not name.
    """

    repositories: Mapping[str, int] = {}
    owners: Mapping[str, int] = {}

    def joined_by(self, others: "RemainingStarts") -> "RemainingStarts":
        """These, and `others` for what is not among them."""
        return RemainingStarts(
            repositories={**others.repositories, **self.repositories}, owners={**others.owners, **self.owners}
        )


class ClaimExclusions(Value, frozen=True, kw_only=True):
    """Jobs, repositories and owners that a claim's query leaves out."""

    repositories: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    """Ids."""

    def and_(self, others: "ClaimExclusions") -> "ClaimExclusions":
        """Return both exclusions together."""
        return ClaimExclusions(
            repositories=self.repositories | others.repositories,
            owners=self.owners | others.owners,
            jobs=self.jobs | others.jobs,
        )


UNLIMITED: Final = RemainingStarts()


def overdue(waiting_since: float, now: float, max_wait_seconds: float = MAX_WAIT_SECONDS) -> bool:
    """Return whether a job has waited longer than `max_wait_seconds`."""
    return waiting_since < now - max_wait_seconds


def in_order(candidates: Iterable[Candidate], overdue_before: float = -math.inf) -> list[Candidate]:
    """Return candidates of one label in the order in which they start.

    Jobs that wait since before `overdue_before` are overdue.
    """

    def order_key(each: Candidate) -> tuple[float, ...]:
        if each.waiting_since < overdue_before:
            return (0, each.waiting_since, each.age, 0)
        return (1, rank(each.priority), each.start_tag, each.age)

    return sorted(candidates, key=order_key)


def assign(
    candidates: Iterable[Candidate],
    free: Mapping[str, int],
    limit: int,
    *,
    overdue_before: float = -math.inf,
    remaining: RemainingStarts = UNLIMITED,
) -> Sequence[Candidate]:
    """Return at most `limit` jobs to start now, in dispatch order.

    No job exceeds its label's slots, or what its repository or owner may still start. Each label's jobs start `in_order`. Start tags
    of two labels cannot be compared: among the next jobs of several labels the overdue one goes first, then the more
    urgent, then the older. A job that is passed over because of its repository or owner delays no other: give more
    candidates, without those (`exclusions_of`), as long as slots are free.
    """
    slots, of_repository, of_owner = dict(free), dict(remaining.repositories), dict(remaining.owners)
    by_label: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_label[candidate.label].append(candidate)
    if len(by_label) == 1 and not (of_repository or of_owner):
        # Most claims: no job is passed over, and there is one label only.
        ((label, waiting),) = by_label.items()
        return in_order(waiting, overdue_before)[: max(0, min(slots.get(label, 0), limit))]
    queues = {label: deque(in_order(waiting, overdue_before)) for label, waiting in by_label.items()}

    def urgency(each: Candidate) -> tuple[float, ...]:
        late = each.waiting_since < overdue_before
        return (0, each.waiting_since, each.age) if late else (1, rank(each.priority), each.age)

    chosen: list[Candidate] = []
    while len(chosen) < limit:
        heads = [
            head
            for label, queue in queues.items()
            if slots.get(label, 0) > 0 and (head := _head(queue, of_repository, of_owner)) is not None
        ]
        if not heads:
            break
        chosen.append(first := heads[0] if len(heads) == 1 else min(heads, key=urgency))
        queues[first.label].popleft()
        slots[first.label] -= 1
        if first.repository in of_repository:
            of_repository[first.repository] -= 1
        if first.owner in of_owner:
            of_owner[first.owner] -= 1
    return chosen


def _head(
    queue: deque[Candidate], of_repository: Mapping[str, int], of_owner: Mapping[str, int]
) -> Candidate | None:
    """Return the first job that may start; drop those before it."""
    while queue and (of_repository.get(queue[0].repository, 1) <= 0 or of_owner.get(queue[0].owner, 1) <= 0):
        queue.popleft()
    return queue[0] if queue else None


def remaining_after(remaining: RemainingStarts, chosen: Iterable[Candidate]) -> RemainingStarts:
    """Return the remaining starts after `chosen` have started."""
    repositories, owners = dict(remaining.repositories), dict(remaining.owners)
    for candidate in chosen:
        if candidate.repository in repositories:
            repositories[candidate.repository] -= 1
        if candidate.owner in owners:
            owners[candidate.owner] -= 1
    return RemainingStarts(repositories=repositories, owners=owners)


def exclusions_of(remaining: RemainingStarts) -> ClaimExclusions:
    """Return the repositories and owners of which no job may start now."""
    return ClaimExclusions(
        repositories=frozenset(name for name, more in remaining.repositories.items() if more <= 0),
        owners=frozenset(name for name, more in remaining.owners.items() if more <= 0),
    )
