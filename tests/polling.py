"""How tests wait: for a fact that rings no bell, as long as a busy machine may take, and not a moment longer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE_SECONDS: Final = 60.0
LONG_PATIENCE_SECONDS: Final = 180.0
"""For what several processes have to do; a test's own timeout may be shorter."""


async def becomes(fact: Callable[[], object]) -> None:
    """Wait until `fact` holds, which this process can see for itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not fact():  # noqa: ASYNC110  whatever it asks has no event to wait for
            await asyncio.sleep(0.01)


async def becomes_true(what: str, fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `fact` holds, which has to be asked for; `what` says in the failure what was waited for."""
    deadline = time.monotonic() + LONG_PATIENCE_SECONDS
    while not await fact():
        assert time.monotonic() < deadline, f"not within {LONG_PATIENCE_SECONDS:g} s: {what}"
        await asyncio.sleep(0.1)
