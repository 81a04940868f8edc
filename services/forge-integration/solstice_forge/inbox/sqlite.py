"""The inbox in one SQLite file. Several processes may keep deliveries in it; one of them relays."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from solstice_common.doorbell import Doorbell
from solstice_common.errors import StoreUnavailable
from solstice_common.gathering import Gathering
from solstice_common.settings import sqlite_path
from solstice_common.sqlite import Database, migrations_of
from solstice_forge.inbox.keep import keep_all
from solstice_forge.inbox.protocol import Decision, Kept, NewDelivery, Pending

BUSY_SECONDS: Final = 3.0
"""How long another process may hold the file: Gitea and Forgejo wait 5 s for an answer."""
_LOCK_POLL_SECONDS: Final = 1.0
_PUBLISHED: Final = "UPDATE requests SET published = 1, attempts = attempts + 1 WHERE row_id = ?"
_NOT_PUBLISHED: Final = "UPDATE requests SET attempts = attempts + 1, last_failure = ? WHERE row_id = ?"


class SqliteInbox:
    """Open with `SqliteInbox.open`."""

    def __init__(self, database: Database, doorbell: Doorbell) -> None:
        self._database = database
        self._doorbell = doorbell
        self._ring_due = False
        self._gathered: Gathering[NewDelivery, Kept] = Gathering(
            lambda deliveries: database.submit(lambda connection: keep_all(connection, deliveries))
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, busy_seconds: float = BUSY_SECONDS) -> AsyncIterator["SqliteInbox"]:
        """The inbox in the file of `url`, made when missing. ConfigurationError, StoreUnavailable, SchemaTooNew."""
        path = sqlite_path(url)
        migrations = migrations_of("solstice_forge.inbox.migrations")
        async with Database.open(path, migrations, busy_seconds=busy_seconds) as database:
            yield cls(database, Doorbell(path.with_name(path.name + ".bell")))

    async def keep(self, delivery: NewDelivery) -> Kept:
        try:
            kept = await self._gathered(delivery)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001  one delivery that brings out a mistake of ours must not take the others along
            (kept,) = await self._database.write(lambda connection: keep_all(connection, [delivery]))
        if kept.decision is Decision.ACCEPTED and not self._ring_due:
            # One ring for all that were kept in this turn of the loop.
            self._ring_due = True
            asyncio.get_running_loop().call_soon(self._ring)
        return kept

    async def pending(self, limit: int) -> Sequence[Pending]:
        return await self._database.read(lambda connection: _pending(connection, limit))

    async def published(self, row_ids: Sequence[int]) -> None:
        marks = [(row_id,) for row_id in row_ids]
        await self._database.write(lambda connection: _mark(connection, _PUBLISHED, marks))

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        marks = [(detail, row_id) for row_id in row_ids]
        await self._database.write(lambda connection: _mark(connection, _NOT_PUBLISHED, marks))

    async def backlog(self) -> int:
        return await self._database.read(_backlog)

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        path = self._database.path.with_name(self._database.path.name + ".relay")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _lock(descriptor):  # noqa: ASYNC110  another process's lock rings no bell
                await asyncio.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._doorbell.listen()

    def _ring(self) -> None:
        self._ring_due = False
        self._doorbell.ring()


def _pending(connection: sqlite3.Connection, limit: int) -> list[Pending]:
    rows = connection.execute(
        "SELECT row_id, request_id, request, attempts FROM requests WHERE published = 0 ORDER BY row_id LIMIT ?",
        (limit,),
    )
    return [
        Pending(
            row_id=row["row_id"],
            request_id=row["request_id"],
            request=row["request"],
            attempts=row["attempts"],
        )
        for row in rows
    ]


def _mark(connection: sqlite3.Connection, statement: str, marks: Sequence[tuple[object, ...]]) -> None:
    connection.executemany(statement, marks)


def _backlog(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM requests WHERE published = 0").fetchone()[0])


def _lock(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
