"""Reads connections with large bodies one after the other.

So small requests between them are answered soon.
"""

import asyncio
from collections import deque
from typing import Final

LARGE_READ: Final = 64 * 1024
"""Bytes of one read after which a connection has to wait."""
AT_ONCE: Final = 4
"""Connections that are read in one iteration of the event loop: each read takes at most 256 KiB (uvloop)."""


class ReadQueue:
    """The connections of one server that wait to be read, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedReader] = deque()
        self._is_scheduled = False

    def wait(self, reading: "QueuedReader") -> None:
        """Call `reading.on_next` in one of the next iterations of the event loop."""
        self._waiting.append(reading)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._waiting.popleft().on_next()
        if self._waiting:
            self._schedule()


class QueuedReader:
    """A connection that is read after those before it in the queue.

    It is read only while the application accepts more.
    """

    def __init__(self, transport: asyncio.Transport, queue: ReadQueue) -> None:
        self._transport = transport
        self._queue = queue
        self._may_read = True
        """Whether the application accepts more data."""
        self._waits = False
        self.is_read = True

    def pause_reading(self) -> None:
        self._may_read = False
        self._set(is_read=False)

    def resume_reading(self) -> None:
        self._may_read = True
        if not self._waits:
            self._set(is_read=True)

    def wait_in_queue(self) -> None:
        """Pause reading until the other waiting connections have been read."""
        if not self._waits:
            self._waits = True
            self._set(is_read=False)
            self._queue.wait(self)

    def on_next(self) -> None:
        """Resume reading, if the application accepts more and the connection is still open."""
        self._waits = False
        if self._may_read:
            self._set(is_read=True)

    def _set(self, *, is_read: bool) -> None:
        if is_read == self.is_read or self._transport.is_closing():
            return
        self.is_read = is_read
        if is_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
