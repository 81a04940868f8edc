"""Prints numbered stops on a terminal, with a tick and a time for each.

The one that failed is named.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from rich.console import Console

from solstice_common.errors import SolsticeError

WIDTH: Final = 56
ASKING_SECONDS: Final = 5.0
"""How long the orchestrator may take to say why a stop is late."""

Explanation = Callable[[], Awaitable[str]]


class StopFailed(SolsticeError):
    """A stop of the demo failed.

    Nothing after it was tried.
    """

    def __init__(self, number: int, name: str, detail: str) -> None:
        super().__init__(f"stop {number} failed: {name}: {detail}")
        self.number = number
        self.name = name


class Unexpected(SolsticeError):
    """A stop found an unexpected result."""


class Stops:
    """Prints the stops as they are passed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._number = 0

    @asynccontextmanager
    async def stop(
        self, name: str, *, limit_seconds: float, why_late: Explanation | None = None
    ) -> AsyncIterator[None]:
        """Time one stop.

        Raises StopFailed when its block raises one of our errors, an OSError, or takes too long.

        `why_late` returns a sentence about a stop that takes too long.
        """
        self._number += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_seconds):
                yield
        except (SolsticeError, OSError) as error:
            # TimeoutError is an OSError.
            detail = str(error) or f"not within {limit_seconds:g} s{await _explained(why_late)}"
            self._print("[bold red]✗[/bold red]", name, began)
            raise StopFailed(self._number, name, detail) from error
        self._print("[bold green]✓[/bold green]", name, began)

    def _print(self, mark: str, name: str, began: float) -> None:
        self.console.print(f"{self._number:2} {mark} {name:<{WIDTH}} {time.monotonic() - began:5.1f} s")


async def _explained(why_late: Explanation | None) -> str:
    """`: SENTENCE`, or nothing without one."""
    if why_late is None:
        return ""
    try:
        async with asyncio.timeout(ASKING_SECONDS):
            why = await why_late()
    except (SolsticeError, OSError):
        return ""
    return f": {why}" if why else ""
