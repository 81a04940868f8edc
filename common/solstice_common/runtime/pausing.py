"""Pauses until a time has passed or an event is set."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

Timer = Callable[[float], AbstractAsyncContextManager[object]]
"""Like `asyncio.timeout`, perhaps by another clock."""


async def pause(seconds: float, *, unless: asyncio.Event, timer: Timer = asyncio.timeout) -> None:
    """Return after so many seconds, or as soon as `unless` is set."""
    with contextlib.suppress(TimeoutError):
        async with timer(seconds):
            await unless.wait()
