"""A pause that a notification cuts short."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

Timer = Callable[[float], AbstractAsyncContextManager[object]]
"""Like `asyncio.timeout`, with a clock of its own: TimeoutError in its block after so many seconds."""


async def pause(seconds: float, *, unless: asyncio.Event, timer: Timer = asyncio.timeout) -> None:
    """Return after so many seconds, or as soon as `unless` is set; at once when it is."""
    with contextlib.suppress(TimeoutError):
        async with timer(seconds):
            await unless.wait()
