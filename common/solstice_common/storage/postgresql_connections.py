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
    # Planning the statements of a claim each time would take a quarter as long as executing them.
    "plan_cache_mode": "force_generic_plan",
    # A plan is made when a table may still be empty, and kept until its statistics change: a plan for a few
    # rows must not be kept for the hundred thousand of the next minute.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # A statement ends before its parallel workers would have started.
    "max_parallel_workers_per_gather": "0",
}
"""Settings of the pool's sessions alone.

There, every statement has an index of its own.
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
        self._in_use = 0
        self._returned = asyncio.Event()
        """Set when a connection is no longer in use."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, most: int) -> "AsyncIterator[ConnectionPool]":
        """Open a pool of so many connections, each made when it is first needed."""
        pool = asyncpg.create_pool(
            url,
            min_size=0,
            max_size=most,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS,
            server_settings={**SESSION, **PREFER_INDEXES},
            # No statement here leaves state on a session, so no round trip needs to reset it.
            reset=_nothing_to_reset,
        )
        await pool
        connections = cls(pool)
        try:
            yield connections
        finally:
            # A server that does not answer must not block us; `close` terminates connections that it cannot
            # close cleanly.
            with suppress(*CONNECTION_ERRORS):
                await asyncio.wait_for(connections.close(), CLOSE_SECONDS)

    async def close(self) -> None:
        """Return the open connections, and close all of them cleanly."""
        while self._idle:
            await self._release(self._idle.pop())
        await self._pool.close()

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[Connection]:
        """Lend a connection to the block alone; raises `CONNECTION_ERRORS`."""
        connection = await self._take()
        self._in_use += 1
        try:
            yield connection
        except BaseException as error:
            # asyncpg reports a connection that was lost between two statements as misuse.
            lost = isinstance(error, asyncpg.InterfaceError) and is_closed(connection)
            if isinstance(error, asyncpg.InternalClientError):
                # For example, the server's last message arrived together with our next statement: the
                # connection is lost.
                _end(connection)
            await self._release(connection)
            if lost:
                raise asyncpg.ConnectionDoesNotExistError("it ended between two statements") from error
            raise
        else:
            if self._waiting or len(self._idle) >= IDLE_CONNECTIONS:
                await self._release(connection)
            else:
                self._idle.append(connection)
        finally:
            self._in_use -= 1
            self._returned.set()

    async def _release(self, connection: Connection) -> None:
        """Return a connection to the pool.

        The pool waits for an interrupted statement, or ends the connection.
        """
        # This error does not concern the caller, and must not replace the error that is being raised.
        with suppress(*CONNECTION_ERRORS):
            await self._pool.release(connection, timeout=CLOSE_SECONDS)

    async def _take(self) -> Connection:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + CONNECT_SECONDS
        while True:
            while self._idle:
                connection = self._idle.pop()
                if not is_closed(connection):
                    return connection
                await self._release(connection)
            self._waiting += 1
            self._returned.clear()
            try:
                return await self._pool.acquire(timeout=CONNECT_SECONDS)
            except OSError:
                # No new connection can be made, perhaps because the server's name has no address now. One that is open
                # needs no name.
                is_hopeless = not self._in_use and not self._returned.is_set()
                if is_hopeless or loop.time() >= give_up_at:
                    raise
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._returned.wait(), give_up_at - loop.time())
            finally:
                self._waiting -= 1


async def undo(connection: Connection) -> None:
    """Roll back; end the connection when it does not confirm that soon.

    Both have the same effect. A cancelled statement still runs when the server received the cancellation
    before the statement; a cancelled caller must end nevertheless.
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
        return True  # and the pool has taken it back already


def _end(connection: Connection) -> None:
    if not is_closed(connection):
        connection.terminate()


async def _nothing_to_reset(_: "asyncpg.Connection[asyncpg.Record]") -> None:
    pass
