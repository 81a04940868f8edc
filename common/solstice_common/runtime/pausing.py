"""A pause that a notification cuts short."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

Timer = Callable[[float], AbstractAsyncContextManager[object]]
"""As `asyncio.timeout`: TimeoutError in the block that it opens, after so many seconds. Of whatever clock it goes by."""


async def pause(seconds: float, *, unless: asyncio.Event, timer: Timer = asyncio.timeout) -> None:
    """Return after so many seconds, or as soon as `unless` is set; at once when it is."""
    with contextlib.suppress(TimeoutError):
        async with timer(seconds):
            await unless.wait()
