"""Wakes those who wait for a change of a SQLite store, in every process of the machine."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

from solstice_common.runtime.file_notifier import Doorbell

RING_PAUSE_SECONDS: Final = 0.01
"""Other processes are woken at most this often; what happens in between rings once, afterwards."""


class Bell:
    """Wakes the listeners of this process at once, and those of others through the doorbell, not too often."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    def ring(self) -> None:
        if self._pause is not None:
            self._again = True
            return
        self._doorbell.ring()
        self._pause = asyncio.get_running_loop().call_later(RING_PAUSE_SECONDS, self._paused)

    def _paused(self) -> None:
        self._pause = None
        if self._again:
            self._again = False
            self.ring()

    def listen(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._doorbell.listen()

    def close(self) -> None:
        """Ring what was still to be rung."""
        if self._pause is not None:
            self._pause.cancel()
            if self._again:
                self._doorbell.ring()
