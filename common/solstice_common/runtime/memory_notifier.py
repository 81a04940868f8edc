"""Wakes tasks of this process that wait for changes in its memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class Notifier(Protocol):
    """Wakes listeners of shared data; `FileNotifier` has the rules."""

    def notify(self) -> None: ...

    def notify_elsewhere(self) -> None: ...

    def notify_here(self) -> None: ...

    def listen(self) -> AbstractAsyncContextManager[asyncio.Event]: ...


class MemoryNotifier:
    """A `Notifier` for data that all its users open in one process.

    `group` holds the notifiers of the same data, and is empty at first.
    """

    def __init__(self, group: set["MemoryNotifier"]) -> None:
        self._group = group
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def notify(self) -> None:
        """Wake every listener. Never blocks, never raises; safe from any thread."""
        for notifier in tuple(self._group):
            notifier.wake()

    def notify_elsewhere(self) -> None:
        """Wake every listener but those of this notifier, as `notify` does."""
        for notifier in tuple(self._group):
            if notifier is not self:
                notifier.wake()

    def notify_here(self) -> None:
        """Wake the listeners of this notifier alone. Called in their event loop."""
        for notified in self._listeners:
            notified.set()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every notification."""
        notified = asyncio.Event()
        self._listeners[notified] = asyncio.get_running_loop()
        self._group.add(self)
        try:
            yield notified
        finally:
            del self._listeners[notified]
            if not self._listeners:
                self._group.discard(self)

    def wake(self) -> None:
        """Wake the listeners of this notifier, from any thread."""
        for notified, loop in tuple(self._listeners.items()):
            # A closed loop has no task that waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(notified.set)
