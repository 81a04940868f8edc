"""Collects what a dead-letter queue shows."""

from solstice_common.broker import DeadLetter, DeadLetterQueue


async def browse(queue: DeadLetterQueue, limit: int, *, whole: bool = False) -> list[DeadLetter]:
    """The first dead letters, as `DeadLetterQueue.browse` shows them."""
    found: list[DeadLetter] = []
    await queue.browse(limit, found.append, whole=whole)
    return found
