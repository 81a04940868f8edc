"""Waits while another reader holds a dead-letter queue: it would look empty."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetterQueue
from solstice_common.errors import DeadLettersInUse

WAIT_SECONDS: Final = 12.0
"""Longer than another list of some thousands takes, and than the counts of RabbitMQ's management API are old."""
POLL_SECONDS: Final = 0.2

OnHeld = Callable[[str, int | None], None]
"""Called with a queue and how many of its dead letters others hold; see `DeadLetterQueue.in_use`."""


async def read_in_time(queue: DeadLetterQueue, read: Callable[[], Awaitable[int]]) -> int:
    """Repeat `read` until it had some dead letters, or there are none; return how many.

    Raises DeadLettersInUse when another reader still holds them after WAIT_SECONDS.
    """
    give_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            if had := await read():
                return had
        except DeadLettersInUse:
            if time.monotonic() >= give_up_at:
                raise
        held = await queue.in_use()
        is_late = time.monotonic() >= give_up_at
        if held == 0 and (is_late or not await queue.count()):
            return 0
        if is_late:
            raise DeadLettersInUse(queue.name, held)
        await asyncio.sleep(POLL_SECONDS)
