"""One PostgreSQL database: a pool that reconnects, and transactions that are retried.

A write is durable when its call returns, unless the server says otherwise (`synchronous_commit`). Every
connection has time limits, so that it cannot delay others for long: a process that freezes in the middle of a
transaction loses it after `IDLE_SECONDS`, and a lost machine is noticed after a minute.

Source: magicstack.github.io/asyncpg; postgresql.org/docs/current/errcodes-appendix.html,
.../runtime-config-client.html.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

import asyncpg

from solstice_common.addresses.system_errors import system_words
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.settings import without_password
from solstice_common.storage import postgresql_schema
from solstice_common.storage.migrations import Migration
from solstice_common.storage.postgresql_connections import (
    ASYNCPG_ERRORS,
    CONNECT_SECONDS,
    CONNECTION_ERRORS,
    SESSION,
    Connection,
    ConnectionPool,
)
from solstice_common.storage.postgresql_notifier import PostgreSQLNotifier
from solstice_common.storage.postgresql_transaction import TransactionMode, transaction

__all__ = ["CONNECTION_ERRORS", "Connection", "PostgreSQLDatabase", "connected", "named"]

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
"""Runs inside a transaction that it neither begins nor ends.

It may run again from the start when PostgreSQL rolled it back in favour of another, so it uses only the
connection.
"""

CONNECTIONS: Final = 8
ATTEMPTS: Final = 20
RETRY_BASE_SECONDS: Final = 0.005
RETRY_CAP_SECONDS: Final = 0.5

_RETRYABLE: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,  # another process has just migrated
    asyncpg.OutdatedSchemaCacheError,
)
_UNAVAILABLE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.InsufficientResourcesError,  # 53: disk full, out of memory, too many connections
    asyncpg.OperatorInterventionError,  # 57: shut down, crashed, starting up, cancelled
    asyncpg.PostgresSystemError,  # 58: the server's own input and output
    asyncpg.InternalServerError,  # XX: damaged data
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby
    *_RETRYABLE,
)
_WRONG_SETTING: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,  # 28: user or password
    asyncpg.InvalidCatalogNameError,
    ValueError,  # the URL cannot be read
)


class PostgreSQLDatabase:
    """Open with `PostgreSQLDatabase.open`.

    Every call may be made from any task of the loop that opened it.
    """

    def __init__(
        self, where: str, usual: ConnectionPool, urgent: ConnectionPool, notifier: PostgreSQLNotifier
    ) -> None:
        self.where = where
        """The URL without its password."""
        self._usual = usual
        self._urgent = urgent
        self._notifier = notifier
        self._rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311  jitter is no secret

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        migrations: Sequence[Migration] = (),
        *,
        connections: int = CONNECTIONS,
        applied: str = postgresql_schema.APPLIED,
    ) -> AsyncIterator["PostgreSQLDatabase"]:
        """Connect, bring the schema up to date, and serve calls until left.

        `applied` is as in `postgresql_schema`.

        Raises StoreUnavailable, SchemaTooNew, ConfigurationError (also for a user, password or database that
        the server does not know). Once open, each call raises StoreUnavailable while the database is
        unavailable.
        """
        where = without_password(url)
        async with connected(url) as connection:
            await postgresql_schema.migrate(connection, where, migrations, applied=applied)
        async with (
            PostgreSQLNotifier.open(lambda: connected(url), CONNECT_SECONDS) as notifier,
            ConnectionPool.open(url, connections) as usual,
            ConnectionPool.open(url, 1) as urgent,
        ):
            yield cls(where, usual, urgent, notifier)

    async def transaction(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run `work` in a transaction (read committed); return its result once that is durable.

        `urgent` has a connection of its own: it does not wait for transactions that wait for a lock, perhaps
        of a frozen process. An exception of `work` rolls it back and is raised here. After a deadlock or a
        serialization failure it runs again.

        StoreUnavailable: nothing was changed. But when the connection is lost during the commit, or the
        caller is cancelled, it is unknown whether the transaction was committed; so repeat only operations
        that are safe to repeat.
        """
        return await self._carry_out(work, TransactionMode.WRITING, self._urgent if urgent else self._usual)

    async def read(self, work: Work[T]) -> T:
        """Run `work` on one snapshot, without writing and without waiting for locks."""
        return await self._carry_out(work, TransactionMode.READING, self._usual)

    async def fetch(self, statement: str, *arguments: object) -> Sequence["asyncpg.Record"]:
        """Return the rows of a single statement, which is its own transaction: one round trip.

        Not tried again after a deadlock; StoreUnavailable as with `transaction`.
        """
        try:
            async with self._usual.acquired() as connection:
                return await connection.fetch(statement, *arguments)
        except CONNECTION_ERRORS as error:
            raise named(self.where, error) from error

    async def at_once(self, statement: str, *arguments: object) -> "Sequence[asyncpg.Record] | None":
        """Return the rows of a single statement that changes something.

        None when PostgreSQL rolled it back in favour of another.

        Not tried again; StoreUnavailable as with `transaction`.
        """
        try:
            async with self._usual.acquired() as connection:
                return await connection.fetch(statement, *arguments)
        except _RETRYABLE:
            return None
        except CONNECTION_ERRORS as error:
            raise named(self.where, error) from error

    def listen(self, channel: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """Return an event that is set at every notification of `channel`, from any process.

        See `PostgreSQLNotifier.listen`.
        """
        return self._notifier.listen(channel)

    def notify(self, channel: str) -> None:
        """Wake all listeners of `channel` in every process; see `PostgreSQLNotifier.notify`."""
        self._notifier.notify(channel)

    async def _carry_out(self, work: Work[T], mode: TransactionMode, pool: ConnectionPool) -> T:
        failures = 0
        while True:
            try:
                async with pool.acquired() as connection, transaction(connection, mode):
                    return await work(connection)
            except CONNECTION_ERRORS as error:
                failures += 1
                if not isinstance(error, _RETRYABLE) or failures == ATTEMPTS:
                    raise named(self.where, error) from error
            await asyncio.sleep(
                backoff_seconds(
                    failures, rng=self._rng, base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS
                )
            )


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Connect outside of any pool, without a time limit on statements.

    Raises StoreUnavailable, and ConfigurationError for a URL, user, password or database that is wrong.
    """
    where = without_password(url)
    if where.endswith("://..."):
        # The messages of asyncpg and urllib hold parts of the password.
        raise ConfigurationError(
            f"the URL of the database, {where}, cannot be taken apart: in user and password write # [ ] @ / ? and % as "
            "%23 %5B %5D %40 %2F %3F and %25"
        )
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, server_settings=SESSION)
    except _WRONG_SETTING as error:
        raise ConfigurationError(f"the database {where}: {error}") from error
    except CONNECTION_ERRORS as error:
        raise named(where, error) from error
    try:
        yield connection
    except ASYNCPG_ERRORS as error:
        raise named(where, error) from error
    finally:
        connection.terminate()


def named(where: str, error: Exception) -> Exception:
    """Return the error as callers know it.

    StoreUnavailable, or the error itself where it is a mistake in our own SQL.
    """
    closed = type(error) is asyncpg.InterfaceError and "clos" in str(error)
    if isinstance(error, asyncpg.InternalClientError):
        return StoreUnavailable(where, f"the connection broke off ({error})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(where, "it did not answer in time")
    if closed or isinstance(error, _UNAVAILABLE):
        return StoreUnavailable(where, system_words(str(error)) or type(error).__name__)
    return error
