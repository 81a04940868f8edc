"""Lists dead letters, removes selected ones and puts exported ones back."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts, facts_of, facts_of_each
from solstice_common.broker.dead_letters.dead_letter_queue import (
    DeadLetter,
    DeadLetterQueue,
    DeadLetterQueues,
)
from solstice_common.broker.dead_letters.dead_letter_routes import DeadLetterRoute
from solstice_common.broker.dead_letters.selection import Selection

EVERYTHING: Final = 1_000_000
AT_ONCE: Final = 500
"""How many dead letters an import adds at once."""

Progress = Callable[[int], None]
"""Called with the number of dead letters that are done."""


def no_progress(_done: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The result of an import."""

    added: int
    present: int
    """Those that were there already, and further copies in the file."""
    failed: Sequence[str]
    """Why the broker did not take the others."""


async def existing(queues: DeadLetterQueues, routes: Iterable[DeadLetterRoute]) -> Sequence[DeadLetterRoute]:
    """Those that services declare, and those that are left from another AMQP_PRIORITIES."""
    return [each for each in routes if each.is_declared or await queues.queue(each.dlq).count() is not None]


async def browse(
    queues: DeadLetterQueues, names: Iterable[str], selection: Selection
) -> list[DeadLetterFacts]:
    """The selected dead letters of each of these queues, the oldest first; changes nothing."""
    found: list[DeadLetterFacts] = []
    for name in names:
        dead_letters = facts_of_each(await queues.queue(name).browse(EVERYTHING))
        found += [each for each in dead_letters if selection.fits(each)]
    return found


async def drop(
    queue: DeadLetterQueue, selection: Selection, *, on_progress: Progress = no_progress
) -> Sequence[str]:
    """Remove the selected dead letters permanently; return their ids."""
    dropped: list[str] = []

    async def handle(group: Sequence[DeadLetter]) -> Collection[str]:
        chosen = [each.id for each in group if selection.fits(facts_of(each))]
        dropped.extend(chosen)
        on_progress(len(dropped))
        return chosen

    await queue.take(handle, EVERYTHING)
    return list(dict.fromkeys(dropped))


async def put_back(
    queue: DeadLetterQueue, dead_letters: Iterable[DeadLetter], *, on_progress: Progress = no_progress
) -> Added:
    """Add dead letters to a queue that it does not hold already; safe to repeat."""
    present = {each.id for each in await queue.browse(EVERYTHING)}
    given = list(dead_letters)
    missing = list({each.id: each for each in given if each.id not in present}.values())
    failed: list[str] = []
    for start in range(0, len(missing), AT_ONCE):
        outcomes = await queue.put_back(missing[start : start + AT_ONCE])
        failed += [f"{each.status}: {each.detail}" for each in outcomes if not each.confirmed]
        on_progress(min(start + AT_ONCE, len(missing)))
    return Added(added=len(missing) - len(failed), present=len(given) - len(missing), failed=failed)
