"""Keeps PostgreSQL connections between calls.

asyncpg's pool returns each connection in a task of its own, which takes a short transaction as long as a round trip.

Source: magicstack.github.io/asyncpg.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import Pool, PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

CONNECT_SECONDS: Final = 10.0
"""The limit in seconds for making a connection, and for waiting for a free one."""
CLOSE_SECONDS: Final = 2.0
STATEMENT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 5.0
IDLE_CONNECTIONS: Final = 4
"""Connections that stay open for the next call.

The pool ends others that were not used for minutes.
"""
SESSION: Final = {
    "application_name": "solstice-ci",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:.0f}s",
    "jit": "off",  # every statement is short; compiling it would take longer
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
PREFER_INDEXES: Final = {
    # Planning the statements of a claim anew each time takes a quarter as long as carrying them out.
    "plan_cache_mode": "force_generic_plan",
    # A plan is made when a table may still be empty, and kept until its statistics change: what suits a few rows must
    # not be chosen for the hundred thousand that come in the next minute.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # Parallel workers would have to be started first, and by then the statement is over.
    "max_parallel_workers_per_gather": "0",
}
"""Settings of the pool's sessions alone.

Every statement there finds its rows by an index that was made for it.
"""

ASYNCPG_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CONNECTION_ERRORS: Final = (OSError, *ASYNCPG_ERRORS)
"""Every error that a call may raise; TimeoutError is an OSError."""


class ConnectionPool:
    """Open with `ConnectionPool.open`.

    Every call may be made from any task of the loop that opened them.
    """

    def __init__(self, pool: "Pool[asyncpg.Record]") -> None:
        self._pool = pool
        self._idle: list[Connection] = []
        self._waiting = 0
        """How many calls wait for a connection of the pool."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, most: int) -> "AsyncIterator[ConnectionPool]":
        """A pool of so many connections, each made when it is first needed."""
        pool = asyncpg.create_pool(
            url,
            min_size=0,
            max_size=most,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS,
            server_settings={**SESSION, **PREFER_INDEXES},
            # Nothing here leaves state on a session that a round trip would have to clear.
            reset=_nothing_to_reset,
        )
        await pool
        connections = cls(pool)
        try:
            yield connections
        finally:
            # A server that does not answer must not hold us; closing ends what it cannot close in good order.
            with suppress(*CONNECTION_ERRORS):
                await asyncio.wait_for(connections.close(), CLOSE_SECONDS)

    async def close(self) -> None:
        """Return the open connections, and close all of them cleanly."""
        while self._idle:
            await self._release(self._idle.pop())
        await self._pool.close()

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[Connection]:
        """One connection for the block alone; raises `CONNECTION_ERRORS`."""
        connection = await self._take()
        try:
            yield connection
        except BaseException as error:
            # A connection that ended between two statements has left us, and its next use is called a misuse.
            lost = isinstance(error, asyncpg.InterfaceError) and is_closed(connection)
            if isinstance(error, asyncpg.InternalClientError):
                # Such as the server's last message arriving together with our next statement: of no further use.
                _end(connection)
            await self._release(connection)
            if lost:
                raise asyncpg.ConnectionDoesNotExistError("it ended between two statements") from error
            raise
        if self._waiting or len(self._idle) >= IDLE_CONNECTIONS:
            await self._release(connection)
        else:
            self._idle.append(connection)

    async def _release(self, connection: Connection) -> None:
        """Return a connection to the pool.

        The pool waits for a statement that was cut short, or ends the connection.
        """
        # This is not the caller's trouble any more, and must not replace the error that is being raised.
        with suppress(*CONNECTION_ERRORS):
            await self._pool.release(connection, timeout=CLOSE_SECONDS)

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not is_closed(connection):
                return connection
            await self._release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=CONNECT_SECONDS)
        finally:
            self._waiting -= 1


async def undo(connection: Connection) -> None:
    """Roll back; end the connection when it does not confirm that soon.

    Both have the same effect. A statement that was cancelled goes on when the server heard of that before it had begun;
    and a cancelled caller must end nevertheless.
    """
    # In a task of its own: `asyncio.timeout` is not reliable in a cancelled task, nor is the library's, before Python
    # 3.11.3 (github.com/python/cpython/issues/102780).
    undone = asyncio.gather(connection.execute("ROLLBACK"), return_exceptions=True)
    try:
        await asyncio.wait({undone}, timeout=CLOSE_SECONDS)
    finally:
        if not undone.done() or isinstance(undone.result()[0], BaseException):
            _end(connection)


def is_closed(connection: Connection) -> bool:
    """Whether the connection serves no more calls."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # and the pool has taken it back by itself


def _end(connection: Connection) -> None:
    if not is_closed(connection):
        connection.terminate()


async def _nothing_to_reset(_: "asyncpg.Connection[asyncpg.Record]") -> None:
    pass
