"""Connections that send large bodies are read in turn, so that small requests between them are answered soon."""

import asyncio
from collections import deque
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

LARGE_READ: Final = 64 * 1024
"""Bytes of one read after which a connection waits for its turn."""
AT_ONCE: Final = 4
"""Connections that are read in one iteration of the event loop: each read takes at most 256 KiB (uvloop)."""


class ReadingTurns:
    """The connections of one server that wait for their turn, first come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[TurnTakingFlow] = deque()
        self._is_scheduled = False

    def wait(self, flow: "TurnTakingFlow") -> None:
        """Call `flow.on_turn` in one of the next iterations of the event loop."""
        self._waiting.append(flow)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._waiting.popleft().on_turn()
        if self._waiting:
            self._schedule()


class TurnTakingFlow(FlowControl):
    """Uvicorn's flow control of one connection, which may also have to wait for its turn to be read."""

    def __init__(self, transport: asyncio.Transport, turns: ReadingTurns) -> None:
        super().__init__(transport)
        self._turns = turns
        self._is_wanted = True
        """Whether the application takes more."""
        self._waits = False

    def pause_reading(self) -> None:
        self._is_wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_wanted = True
        if not self._waits:
            super().resume_reading()

    def wait_for_turn(self) -> None:
        """Read nothing more until the others that wait have been read."""
        if not self._waits:
            self._waits = True
            super().pause_reading()
            self._turns.wait(self)

    def on_turn(self) -> None:
        """Read on, if the application takes more and the connection is still open."""
        self._waits = False
        if self._is_wanted and not self._transport.is_closing():
            super().resume_reading()
