"""Notifies every process of the machine that a SQLite store has changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from solstice_common.runtime.memory_notifier import Notifier
from solstice_orchestrator.store.records.topics import StoreTopic

NOTIFY_PAUSE_SECONDS: Final = 0.01
"""The pause after a notification; changes within it are notified once, afterwards."""
_ALL: Final = StoreTopic.ALL


class StoreNotifier:
    """Notifies listeners of this process by topic, and other processes of every change.

    Each notification is followed by a short pause. Listeners of this process need not wait for its end when a change is
    new work.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._all = notifier
        self._listeners: dict[asyncio.Event, StoreTopic] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._pending_here = StoreTopic.NONE
        self._pending_elsewhere = False

    def notify(self, topics: StoreTopic = _ALL, *, new_work: bool = False) -> None:
        if self._pause is None:
            self._notify_here(topics)
            self._all.notify_elsewhere()
            self._pause = asyncio.get_running_loop().call_later(NOTIFY_PAUSE_SECONDS, self._paused)
            return
        self._pending_elsewhere = True
        if new_work:
            self._notify_here(topics)
        else:
            self._pending_here |= topics

    def _notify_here(self, topics: StoreTopic) -> None:
        for notified, listened_to in self._listeners.items():
            if topics & listened_to:
                notified.set()

    def _paused(self) -> None:
        self._pause = None
        if self._pending_elsewhere:
            topics, self._pending_here = self._pending_here, StoreTopic.NONE
            self._pending_elsewhere = False
            self.notify(topics)

    @asynccontextmanager
    async def listen(self, topics: StoreTopic = _ALL) -> AsyncIterator[asyncio.Event]:
        async with self._all.listen() as notified:
            self._listeners[notified] = topics
            try:
                yield notified
            finally:
                del self._listeners[notified]

    def close(self) -> None:
        """Send the notification that was still pending."""
        if self._pause is not None:
            self._pause.cancel()
            if self._pending_elsewhere:
                self._notify_here(self._pending_here)
                self._all.notify_elsewhere()
