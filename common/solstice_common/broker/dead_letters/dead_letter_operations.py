"""Lists dead letters, removes selected ones and puts exported ones back."""

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Final, Generic, TypeVar

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of
from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    DeadLetterQueue,
    DeadLetterQueues,
    Progress,
    See,
    no_progress,
)
from solstice_common.broker.dead_letters.dead_letter_routes import DeadLetterRoute
from solstice_common.broker.dead_letters.hashed_bodies import in_groups
from solstice_common.broker.dead_letters.other_readers import OnHeld, read_in_time
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.protocol import Published, PublishStatus
from solstice_common.errors import DeadLettersInUse

T = TypeVar("T")

EVERYTHING: Final = 1_000_000
OLDEST: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for an unknown time."""


def ignore_held(_queue: str, _held: int | None) -> None:
    """Report nothing."""


def ignore_selected(_found: DeadLetterFacts) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """How many dead letters an import added, and why it did not add the others."""

    added: int
    present: int
    """Those that were there already, and further copies in the file."""
    failed: Sequence[str]
    """Why the broker did not take the others."""


async def existing(queues: DeadLetterQueues, routes: Iterable[DeadLetterRoute]) -> Sequence[DeadLetterRoute]:
    """Return those that services declare, and those that are left from another AMQP_PRIORITIES."""
    return [each for each in routes if each.is_declared or await queues.queue(each.dlq).count() is not None]


async def browse(
    queues: DeadLetterQueues,
    names: Iterable[str],
    selection: Selection,
    keep: Callable[[DeadLetterFacts], T],
    *,
    most: int = EVERYTHING,
    whole: bool = False,
    on_selected: Callable[[DeadLetterFacts], None] = ignore_selected,
    on_held: OnHeld = ignore_held,
    on_progress: Progress = no_progress,
) -> list[T]:
    """Return what `keep` returns for the selected dead letters of these queues; changes nothing.

    Of each queue the oldest come first, at most `most`, and copies count once. `keep` gets one after the other, and only
    what it returns is held: see `DeadLetterFacts.brief`. It gets none that is younger than the `most` so far;
    `on_selected` gets every selected one, to count it. With `whole`, large bodies are whole.

    Raises DeadLettersInUse when another reader holds all of a queue; `on_held` gets to know that it holds some.
    """
    selected: list[T] = []
    read = itertools.count(1)

    def see(oldest: _Oldest[T], dead_letter: DeadLetter) -> None:
        on_progress(next(read))
        found = facts_of(dead_letter)
        if selection.fits(found) and oldest.add(found):
            on_selected(found)

    for name in names:
        oldest = _Oldest(keep, most)
        await _see_all(queues.queue(name), partial(see, oldest), whole=whole, on_held=on_held)
        selected += oldest.read()
    return selected


class _Oldest(Generic[T]):
    """Keeps the `most` that died first, each once."""

    def __init__(self, keep: Callable[[DeadLetterFacts], T], most: int) -> None:
        self._keep = keep
        self._most = most
        self._ids: set[str] = set()
        self._heap: list[tuple[timedelta, int, T]] = []
        """The youngest first."""

    def add(self, found: DeadLetterFacts) -> bool:
        """Keep it if it is old enough; return whether it is no copy."""
        if found.id in self._ids:
            return False
        self._ids.add(found.id)
        # Of two that died at once, the first one is the older.
        rank = OLDEST - (found.dead_since or OLDEST), -len(self._ids)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (*rank, self._keep(found)))
        elif rank > self._heap[0][:2]:
            heapq.heapreplace(self._heap, (*rank, self._keep(found)))
        return True

    def read(self) -> list[T]:
        return [item for *_, item in sorted(self._heap, key=itemgetter(0, 1), reverse=True)]


async def _see_all(queue: DeadLetterQueue, see: See, *, whole: bool, on_held: OnHeld) -> None:
    seen = 0

    def count(dead_letter: DeadLetter) -> None:
        nonlocal seen
        seen += 1
        see(dead_letter)

    async def read() -> int:
        await queue.browse(EVERYTHING, count, whole=whole)
        return seen

    if await read_in_time(queue, read) and (held := await queue.in_use()) != 0:
        on_held(queue.name, held)


async def drop(
    queue: DeadLetterQueue, selection: Selection, *, on_progress: Progress = no_progress
) -> Sequence[str]:
    """Remove the selected dead letters permanently; return their ids.

    Raises DeadLettersInUse when another reader holds all of them.
    """
    dropped: list[str] = []
    seen = 0

    async def handle(group: Sequence[DeadLetter]) -> Collection[str]:
        nonlocal seen
        seen += len(group)
        on_progress(len(dropped))  # of this group nothing is removed yet
        chosen = [each.id for each in group if selection.fits(facts_of(each))]
        dropped.extend(chosen)
        return chosen

    async def remove() -> int:
        await queue.take(handle, EVERYTHING)
        return seen

    await read_in_time(queue, remove)
    on_progress(len(dropped))
    return list(dict.fromkeys(dropped))


async def purge(
    queue: DeadLetterQueue, *, on_held: OnHeld = ignore_held, on_progress: Progress = no_progress
) -> int:
    """Remove all of a queue; return how many.

    `on_held` gets to know that another reader holds some, which stay.
    """
    try:
        removed = await read_in_time(queue, partial(queue.purge, on_progress))
        held = await queue.in_use() if removed else 0
    except DeadLettersInUse as error:
        removed, held = 0, error.number
    if held != 0:
        on_held(queue.name, held)
    return removed


async def put_back(
    queue: DeadLetterQueue, dead_letters: Iterable[DeadLetter], *, on_progress: Progress = no_progress
) -> ImportResult:
    """Add dead letters to a queue that it does not hold already; safe to repeat.

    They are added as they come, so that no more than a few have to be in memory.

    Raises DeadLettersInUse when another reader holds some: they may be the same ones.
    """
    present: set[str] = set()

    async def read() -> int:
        await queue.browse(EVERYTHING, lambda dead_letter: present.add(dead_letter.id))
        return len(present)

    if await read_in_time(queue, read) and (held := await queue.in_use()) != 0:
        raise DeadLettersInUse(queue.name, held)
    added, given = 0, 0
    failed: list[str] = []

    def missing() -> Iterator[DeadLetter]:
        nonlocal given
        for each in dead_letters:
            given += 1
            if each.id not in present:
                present.add(each.id)
                yield each

    for group in in_groups(missing(), lambda dead_letter: dead_letter.size):
        outcomes = await queue.put_back(group)
        added += sum(each.confirmed for each in outcomes)
        failed += [_failure(each) for each in outcomes if not each.confirmed]
        on_progress(added + len(failed))
    return ImportResult(added=added, present=given - added - len(failed), failed=failed)


def _failure(outcome: Published) -> str:
    words = f"{outcome.status}: {outcome.detail}"
    if outcome.status is PublishStatus.UNROUTABLE:
        words += ": 'solstice topology declare' makes the queues, then import again"
    return words
