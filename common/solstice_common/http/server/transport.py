"""A transport that writes once per iteration of the event loop.

It never writes after it was closed.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from solstice_common.http.server.read_queue import QueuedReader


class OneWriteTransport:
    """A transport with one write for all data of one iteration of the event loop.

    Data that is written after `close` is dropped.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        closing: Callable[[], bool],
        reading: QueuedReader,
    ) -> None:
        self.reading: Final = reading
        self._transport = transport
        self._loop = loop
        self._closing = closing
        """Called once, at `close`.

        True: the caller reads on for a while and closes the connection itself.
        """
        self._parts: list[bytes] = []
        self._is_closed = False
        self._written = 0
        """Bytes written since the connection began."""
        self._sent = -1
        """Bytes that the client had taken at the last check; -1 for all."""
        self._stuck_at = math.inf

    def is_closing(self) -> bool:
        return self._is_closed or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._is_closed:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        if self._is_closed:
            return
        self._flush()
        self._is_closed = True
        if self._transport.is_closing():
            return
        if self._closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, and drop unsent data."""
        self._is_closed = True
        self._parts.clear()
        self._transport.abort()

    def is_stuck(self, now: float, seconds: float) -> bool:
        """Whether the client has taken nothing for so long; call it repeatedly."""
        unsent = _buffered(self._transport)
        sent = -1 if unsent == 0 else self._written - unsent
        if unsent == 0 or sent != self._sent:
            self._sent, self._stuck_at = sent, now + seconds
        return now >= self._stuck_at

    def pause_reading(self) -> None:
        self.reading.pause_reading()

    def resume_reading(self) -> None:
        self.reading.resume_reading()

    def _flush(self) -> None:
        if not self._parts:
            return
        data, self._parts = b"".join(self._parts), []
        if not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _buffered(transport: asyncio.Transport) -> int:
    try:
        return transport.get_write_buffer_size()
    except (NotImplementedError, RuntimeError):  # none of its own, or closed already
        return 0
