"""Wakes waiting tasks in every process on a PostgreSQL database.

It uses LISTEN and NOTIFY on one connection.

Notifications are sent after the change was committed, not in its transaction: a transaction with a NOTIFY
holds a lock of the whole server until its commit is on disk, so that all commits would wait for each other. A
notification may therefore be lost with its process; as with `file_notifier`, a listener also reads the data
at a slow interval.

Source: postgresql.org/docs/current/sql-notify.html; PostgreSQL's src/backend/commands/async.c on the lock.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from solstice_common.errors import ConfigurationError, StoreError
from solstice_common.runtime.backoff import backoff_seconds

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    AnyConnection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

Connect = Callable[[], AbstractAsyncContextManager["asyncpg.Connection[asyncpg.Record]"]]

NOTIFY_PAUSE_SECONDS: Final = 0.02
"""The shortest time in seconds between two notifications to other processes.

Changes in between become one later notification.
"""
LONGEST_PAUSE_SECONDS: Final = 0.1
"""The longest such time, while notifications come without end.

Each makes every listener read the data, and each read finds all changes.
"""
CHECK_SECONDS: Final = 20.0
"""Seconds of silence after which the connection is checked."""
RETRY_BASE_SECONDS: Final = 0.1
RETRY_CAP_SECONDS: Final = 2.0
FLUSH_SECONDS: Final = 1.0


class PostgreSQLNotifier:
    """The notifications of one database, by channel; open with `PostgreSQLNotifier.open`."""

    def __init__(self, connect: Connect, answer_seconds: float) -> None:
        self._connect = connect
        self._answer_seconds = answer_seconds
        self._name = uuid.uuid4().hex
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._unsent: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311  jitter is no secret

    @classmethod
    @asynccontextmanager
    async def open(cls, connect: Connect, answer_seconds: float) -> AsyncIterator["PostgreSQLNotifier"]:
        """Open a notifier; it connects at the first use.

        Leaving sends the pending notifications.

        `answer_seconds` is how long the database may take to answer before the connection counts as lost.
        """
        notifier = cls(connect, answer_seconds)
        try:
            yield notifier
        finally:
            await notifier._close()

    def notify(self, channel: str) -> None:
        """Wake every listener, in this process at once, elsewhere shortly after. Never blocks, never raises."""
        self._wake_here(channel)
        self._unsent.add(channel)
        self._begin()

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every notification.

        The listener clears it before it reads the data.

        It is also set when listening has begun, after each reconnect, and regularly while there is no
        connection, so that no notification is missed.
        """
        notified = asyncio.Event()
        self._listeners.setdefault(channel, set()).add(notified)
        self._begin()
        try:
            yield notified
        finally:
            self._listeners[channel].remove(notified)

    def _begin(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="postgresql-notifier")

    async def _close(self) -> None:
        if self._task is None:
            return
        self._closing = True
        self._wake.set()
        # The slow interval makes up for a notification that cannot be sent now.
        await asyncio.wait([self._task], timeout=FLUSH_SECONDS if self._unsent else 0)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _serve(self) -> None:
        failures = 0
        while not self._closing:
            try:
                async with self._connect() as connection:
                    failures = 0
                    await self._serve_on(connection)
            except (StoreError, ConfigurationError, OSError, asyncpg.InterfaceError):
                failures += 1
            for channel in self._listeners:
                self._wake_here(channel)
            await asyncio.sleep(
                backoff_seconds(
                    failures, rng=self._rng, base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS
                )
            )

    async def _serve_on(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Listen and notify until the connection is lost or closed."""
        connection.add_termination_listener(lambda _: self._wake.set())
        listening: set[str] = set()
        pause = NOTIFY_PAUSE_SECONDS
        while not connection.is_closed():
            self._wake.clear()
            for channel in self._listeners.keys() - listening:
                await connection.add_listener(channel, self._on_notification)
                listening.add(channel)
                self._wake_here(channel)
            if unsent := set(self._unsent):
                self._unsent.clear()
                try:
                    await connection.execute(
                        "SELECT pg_notify(channel, $2) FROM unnest($1::text[]) AS channel",
                        list(unsent),
                        self._name,
                        timeout=self._answer_seconds,
                    )
                except BaseException:
                    self._unsent |= unsent
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if self._unsent else NOTIFY_PAUSE_SECONDS
            if self._closing and not self._unsent:
                return
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=self._answer_seconds)

    def _on_notification(
        self, _connection: "AnyConnection", _pid: int, channel: str, payload: object
    ) -> None:
        # `notify` has woken our own listeners already.
        if payload != self._name:
            self._wake_here(channel)

    def _wake_here(self, channel: str) -> None:
        for notified in self._listeners.get(channel, ()):
            notified.set()
