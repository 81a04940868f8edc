"""Limits the connections of one server, and closes them by state and deadline.

One timer checks the deadlines of all.
"""

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from solstice_common.http.server.bodies import Bodies
from solstice_common.http.server.bounds import Bounds
from solstice_common.http.server.read_queue import ReadQueue
from solstice_common.http.server.refusals import CROWDED_OUT

_CHECKS: Final = 10
"""How often the connections are checked within the shortest deadline."""


class ConnectionState(IntEnum):
    """The state of a connection.

    When there are too many connections, those in the lowest state are closed first; of these the oldest.
    """

    ANSWERED = 0
    """The last answer is being sent; further bytes of the client are dropped."""
    WAITING = 1
    """It has sent nothing, half a head, or nothing since the last answer."""
    SENDING = 2
    """Its body is arriving, or it reads our answer slowly."""
    TRUSTED = 3
    """Like WAITING, but it has sent a genuine request before."""
    WORKING = 4
    """Its request is being answered; it is never closed for another connection."""


def connection_state(
    *, is_answering: bool, is_arriving: bool, is_over: bool, is_read_slowly: bool, is_trusted: bool
) -> ConnectionState:
    """Return the state of a connection, by its activity."""
    if is_answering and (is_over or not is_arriving) and not is_read_slowly:
        return ConnectionState.WORKING
    if is_over:
        return ConnectionState.ANSWERED
    if is_arriving or is_read_slowly:
        return ConnectionState.SENDING
    return ConnectionState.TRUSTED if is_trusted else ConnectionState.WAITING


class Connection(Protocol):
    """What the server asks of each of its connections."""

    def check_deadlines(self, now: float) -> None:
        """Act on deadlines that have passed; `now` is the time of the event loop."""

    def drop(self) -> None:
        """Close the connection at once, without an answer."""


class ServerConnections:
    """The connections of one server, which drops the least busy one when full."""

    def __init__(self, bounds: Bounds, *, refused: Callable[[str], None] = lambda _reason: None) -> None:
        self.bounds = bounds
        self.bodies = Bodies(bounds.body_bytes)
        self.reads = ReadQueue()
        self.refused = refused
        """Called with the reason of every refusal of the protocol."""
        self._states: dict[Connection, ConnectionState] = {}
        self._in_order: list[dict[Connection, None]] = [{} for _ in ConnectionState]
        self._timer: asyncio.TimerHandle | None = None
        self._period = min(bounds.head_seconds, bounds.silence_seconds, 2.0) / _CHECKS

    def __len__(self) -> int:
        return len(self._states)

    def admit(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
        """Accept a new connection, if necessary instead of another. False: there is no room."""
        if len(self._states) >= self.bounds.connections and not self._drop_least_busy():
            return False
        self.set_state(connection, ConnectionState.WAITING)
        if self._timer is None:
            self._timer = loop.call_later(self._period, self._check_deadlines, loop)
        return True

    def set_state(self, connection: Connection, state: ConnectionState) -> None:
        """Set the state of the connection; it becomes the youngest in that state."""
        before = self._states.get(connection)
        if before is not None:
            del self._in_order[before][connection]
        self._states[connection] = state
        self._in_order[state][connection] = None

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        state = self._states.pop(connection, None)
        if state is not None:
            del self._in_order[state][connection]

    def _drop_least_busy(self) -> bool:
        for state in list(ConnectionState)[:-1]:
            if self._in_order[state]:
                oldest = next(iter(self._in_order[state]))
                self.forget(oldest)
                self.refused(CROWDED_OUT)
                oldest.drop()
                return True
        return False

    def _check_deadlines(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for connection in list(self._states):
            connection.check_deadlines(now)
        if self._states:
            self._timer = loop.call_later(self._period, self._check_deadlines, loop)
