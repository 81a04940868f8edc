"""A pause that a bell cuts short."""

import asyncio
import contextlib


async def pause(seconds: float, *, unless: asyncio.Event) -> None:
    """Return after so many seconds, or as soon as `unless` is set; at once when it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()
