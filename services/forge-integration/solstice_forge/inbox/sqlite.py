"""The inbox in one SQLite file. Several processes may keep deliveries in it; one of them relays."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import orjson
from solstice_common.doorbell import Doorbell
from solstice_common.errors import ConfigurationError
from solstice_common.sqlite import Database, migrations_of

from solstice_forge.inbox.protocol import Decision, Kept, NewDelivery, Pending

SCHEME: Final = "sqlite:///"
BUSY_SECONDS: Final = 3.0
"""How long another process may hold the file: Gitea and Forgejo wait 5 s for an answer."""
DUPLICATE_DELIVERY, DUPLICATE_CONTENT = "duplicate_delivery", "duplicate_content"
_LOCK_POLL_SECONDS: Final = 1.0
_PUBLISHED: Final = "UPDATE requests SET published = 1, attempts = attempts + 1 WHERE row_id = ?"
_NOT_PUBLISHED: Final = "UPDATE requests SET attempts = attempts + 1, last_failure = ? WHERE row_id = ?"


class SqliteInbox:
    """Open with `SqliteInbox.open`."""

    def __init__(self, database: Database, doorbell: Doorbell) -> None:
        self._database = database
        self._doorbell = doorbell
        self._ring_due = False

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, busy_seconds: float = BUSY_SECONDS) -> AsyncIterator["SqliteInbox"]:
        """The inbox in the file of `url`, made when missing. ConfigurationError, StoreUnavailable, SchemaTooNew."""
        if not url.startswith(SCHEME) or url == SCHEME:
            raise ConfigurationError(f"FORGE_INBOX_URL {url!r}: must be {SCHEME}FILE")
        path = Path(url.removeprefix(SCHEME))
        migrations = migrations_of("solstice_forge.inbox.migrations")
        async with Database.open(path, migrations, busy_seconds=busy_seconds) as database:
            yield cls(database, Doorbell(path.with_name(path.name + ".bell")))

    async def keep(self, delivery: NewDelivery) -> Kept:
        kept = await self._database.write(lambda connection: _keep(connection, delivery))
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


def _keep(connection: sqlite3.Connection, delivery: NewDelivery) -> Kept:
    if repeated := _repeated(connection, delivery):
        return repeated
    row_id = connection.execute(
        "INSERT INTO deliveries (source_name, delivery_id, event_name, received_at, reason, detail, request_id,"
        " headers, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            delivery.source_name,
            delivery.delivery_id,
            delivery.event_name,
            delivery.received_at,
            delivery.reason,
            delivery.detail,
            delivery.request_id,
            orjson.dumps(delivery.headers).decode(),
            delivery.body,
        ),
    ).lastrowid
    if delivery.request is not None:
        connection.execute(
            "INSERT INTO requests (row_id, content_key, request_id, request) VALUES (?, ?, ?, ?)",
            (row_id, delivery.content_key, delivery.request_id, delivery.request),
        )
    return Kept(
        delivery_id=delivery.delivery_id,
        decision=Decision.IGNORED if delivery.request is None else Decision.ACCEPTED,
        reason=delivery.reason,
        request_ids=() if delivery.request_id is None else (delivery.request_id,),
    )


def _repeated(connection: sqlite3.Connection, delivery: NewDelivery) -> Kept | None:
    """The answer to a delivery that was here before, by its id or by what it says."""
    reason = DUPLICATE_DELIVERY
    row = connection.execute(
        "SELECT request_id FROM deliveries WHERE source_name = ? AND delivery_id = ?",
        (delivery.source_name, delivery.delivery_id),
    ).fetchone()
    if row is None and delivery.content_key is not None:
        reason = DUPLICATE_CONTENT
        row = connection.execute(
            "SELECT request_id FROM requests WHERE content_key = ?", (delivery.content_key,)
        ).fetchone()
    if row is None:
        return None
    return Kept(
        delivery_id=delivery.delivery_id,
        decision=Decision.DUPLICATE,
        reason=reason,
        request_ids=() if row["request_id"] is None else (row["request_id"],),
    )


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
