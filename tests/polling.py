"""Polls in tests for facts that send no notification.

A wait lasts no longer than necessary, on a busy machine too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

WAIT_SECONDS: Final = 60.0
LONG_WAIT_SECONDS: Final = 180.0
"""The limit for work of several processes; a test's own timeout may be shorter."""


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds, which this process can check itself."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110  the condition has no event to wait for
            await asyncio.sleep(0.01)


async def wait_until_true(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition`, which is awaited, holds. On failure, `what` says what was waited for."""
    deadline = time.monotonic() + LONG_WAIT_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"not within {LONG_WAIT_SECONDS:g} s: {what}"
        await asyncio.sleep(0.1)
