"""Which waiting job starts next: (candidates, free slots) -> assignments, and a job's place among those that wait. Pure.

The order of one label: first the *overdue* jobs, whatever their class, the one that has waited longest first; then by
priority class; within a class by `turn`; among equal turns the older one. A turn is a moment in virtual time: the
start tag of start-time fair queueing (Goyal, Vin and Cheng 1996; docs/decisions/0010): repositories that wait for the
same label and class have their jobs interleaved one by one, and whoever comes anew is next. It is given once, when
the job begins to wait, so that a claim reads the beginning of an index, however much waits behind it.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from solstice_common.messages import Priority
from solstice_common.values import Value

PRIORITY_ORDER: Final = tuple(Priority)
"""Most urgent first."""

MAX_WAIT_SECONDS: Final = 1800.0
"""A job that has waited longer is overdue, unless the setting `MAX_WAIT_SECONDS` says otherwise."""

LONG_QUEUE: Final = 10
"""A repository with so many jobs waiting lets those of others by who come anew."""


def rank(priority: Priority) -> int:
    """0 for the most urgent class."""
    return PRIORITY_ORDER.index(priority)


# -- a job begins to wait ------------------------------------------------------------------------------------------


class QueueState(Value, frozen=True, kw_only=True):
    """What a job finds when it begins to wait: the jobs of its label and class, as far as its turn depends on them.

    The *first* is the one with the smallest turn (then age) of those whose repository has room.
    """

    clock: int = 0
    """Of the last `QueueEntry`; kept by the store, one number per label and class."""
    first_turn: int | None = None
    """None when nobody waits."""
    first_next_turn: int = 0
    """The `next_turn` of the first one's repository: how far those reach that wait behind it."""
    largest_next_turn: int = 0
    """Of any repository; asked only when nobody waits."""


class QueueEntry(Value, frozen=True, kw_only=True):
    """Where those come in who did not wait before."""

    turn: int
    clock: int
    """To be kept for the next who comes; it only grows, so that those who come anew do not overtake each other."""


def queue_entry(queue: QueueState) -> QueueEntry:
    """The entry of a queue as it is now.

    Whoever comes anew is level with the first, and so behind all of this round who came before; but where the first
    one's repository has a long queue of its own, they come in just before it. When nobody waits, all that was taken is
    forgotten: whoever had more than others while those were away owes them nothing.
    """
    if queue.first_turn is None:
        clock = max(queue.clock, queue.largest_next_turn)
        return QueueEntry(turn=clock + 1, clock=clock)
    clock = max(queue.clock, queue.first_turn - 1)
    is_long = queue.first_next_turn - queue.first_turn >= LONG_QUEUE
    return QueueEntry(turn=clock if is_long else max(clock, queue.first_turn), clock=clock)


def turns(entry: QueueEntry, next_turn: int | None, count: int) -> range:
    """The turns of `count` jobs of one repository that begin to wait, in their order.

    `next_turn` is the repository's own, None when it has none in this label and class. Its new one is the range's
    `stop`.
    """
    first = entry.turn if next_turn is None else max(entry.turn, next_turn)
    return range(first, first + count)


def next_turn_without(next_turn: int, given_up: Collection[int]) -> int:
    """A repository's next turn once its waiting jobs with the turns `given_up` were cancelled: nobody pays for what never ran.

    Only the newest can be given back: an older one leaves a gap behind it, which costs its repository one place.
    """
    given_up = frozenset(given_up)
    while next_turn - 1 in given_up:
        next_turn -= 1
    return next_turn


# -- a slot is free ------------------------------------------------------------------------------------------------


class Candidate(Value, frozen=True, kw_only=True):
    """A job that could start."""

    job_id: str
    label: str
    priority: Priority
    age: int
    """Smaller for those that came earlier."""
    repository: str = ""
    owner: str = ""
    """Empty: nobody's, which no owner's room bounds."""
    turn: int = 0
    waiting_since: float = math.inf
    """When it began to wait for a slot, in seconds since the epoch."""


class StartRoom(Value, frozen=True, kw_only=True):
    """How many more jobs may start, of some repositories and some owners; of those that are not in it any number may."""

    repositories: Mapping[str, int] = {}
    owners: Mapping[str, int] = {}


class ClaimExclusions(Value, frozen=True, kw_only=True):
    """What may not start now, and of whom nothing may; a claim's query leaves them out."""

    repositories: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    """Ids."""

    def and_(self, others: "ClaimExclusions") -> "ClaimExclusions":
        """These and those."""
        return ClaimExclusions(
            repositories=self.repositories | others.repositories,
            owners=self.owners | others.owners,
            jobs=self.jobs | others.jobs,
        )


UNBOUNDED_ROOM: Final = StartRoom()


def overdue(waiting_since: float, now: float, max_wait_seconds: float = MAX_WAIT_SECONDS) -> bool:
    """Whether a job has waited for longer than any should."""
    return waiting_since < now - max_wait_seconds


def in_order(candidates: Iterable[Candidate], overdue_before: float = -math.inf) -> list[Candidate]:
    """Candidates of one label in the order in which they start; overdue are those that wait since before `overdue_before`."""

    def place(each: Candidate) -> tuple[float, ...]:
        if each.waiting_since < overdue_before:
            return (0, each.waiting_since, each.age, 0)
        return (1, rank(each.priority), each.turn, each.age)

    return sorted(candidates, key=place)


def assign(
    candidates: Iterable[Candidate],
    free: Mapping[str, int],
    limit: int,
    *,
    overdue_before: float = -math.inf,
    room: StartRoom = UNBOUNDED_ROOM,
) -> Sequence[Candidate]:
    """At most `limit` jobs to start now, in dispatch order; none beyond its label's slots, or its repository's or owner's room.

    Each label's jobs start `in_order`. Turns of two labels cannot be compared: between the next jobs of several
    labels it is the overdue, then the more urgent, then the older one that goes first. What is passed over for the
    sake of its repository or owner holds up nobody: give more candidates, without those (`exclusions_of`), as long as slots are
    left.
    """
    slots, of_repository, of_owner = dict(free), dict(room.repositories), dict(room.owners)
    by_label: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_label[candidate.label].append(candidate)
    if len(by_label) == 1 and not (of_repository or of_owner):
        # As most claims are: nobody is passed over, and there is no other label to be compared with.
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
    """The first for whom there is room; those before it are dropped."""
    while queue and (of_repository.get(queue[0].repository, 1) <= 0 or of_owner.get(queue[0].owner, 1) <= 0):
        queue.popleft()
    return queue[0] if queue else None


def room_after(room: StartRoom, chosen: Iterable[Candidate]) -> StartRoom:
    """What is left of `room` once `chosen` have started."""
    repositories, owners = dict(room.repositories), dict(room.owners)
    for candidate in chosen:
        if candidate.repository in repositories:
            repositories[candidate.repository] -= 1
        if candidate.owner in owners:
            owners[candidate.owner] -= 1
    return StartRoom(repositories=repositories, owners=owners)


def exclusions_of(room: StartRoom) -> ClaimExclusions:
    """Those of whom no job may start now."""
    return ClaimExclusions(
        repositories=frozenset(name for name, more in room.repositories.items() if more <= 0),
        owners=frozenset(name for name, more in room.owners.items() if more <= 0),
    )
