"""Notifies every process of the machine that a SQLite store has changed."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

from solstice_common.runtime.file_notifier import FileNotifier

NOTIFY_PAUSE_SECONDS: Final = 0.01
"""The pause between notifications to other processes; changes within it are notified once, afterwards."""


class StoreNotifier:
    """Notifies all listeners through the file notifier, with a short pause after each notification.

    Listeners of this process need not wait for the end of a pause when a change is new work.
    """

    def __init__(self, file_notifier: FileNotifier) -> None:
        self._file_notifier = file_notifier
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    def notify(self, *, new_work: bool = False) -> None:
        if self._pause is not None:
            self._again = True
            if new_work:
                self._file_notifier.notify_here()
            return
        self._file_notifier.notify()
        self._pause = asyncio.get_running_loop().call_later(NOTIFY_PAUSE_SECONDS, self._paused)

    def _paused(self) -> None:
        self._pause = None
        if self._again:
            self._again = False
            self.notify()

    def listen(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._file_notifier.listen()

    def close(self) -> None:
        """Send the notification that was still pending."""
        if self._pause is not None:
            self._pause.cancel()
            if self._again:
                self._file_notifier.notify()
