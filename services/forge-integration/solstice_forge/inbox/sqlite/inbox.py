"""The inbox in one SQLite database: several processes store deliveries, and one relays."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import orjson

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.memory_notifier import Notifier
from solstice_common.storage.sqlite import SqliteDatabase, migrations_of
from solstice_common.storage.sqlite_place import leader_lock_beside, notifier_beside, sqlite_place
from solstice_forge.inbox import paging
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, DeliveryPage, RecordedDelivery
from solstice_forge.inbox.protocol import Decision, KeepResult, Lookup, NewDelivery, PendingRequest
from solstice_forge.inbox.reading import DeliveryQueries
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.inbox.reconcile_tables import ReconcileTables
from solstice_forge.inbox.sqlite import forget, lookups, request_traces
from solstice_forge.inbox.sqlite.keep import keep_all
from solstice_forge.inbox.sweeping import SweepResult
from solstice_forge.inbox.traced_requests import PublishTimes, StoredTimes, TracedRequest, trace_rows

BUSY_SECONDS: Final = 3.0
"""How long to wait for a file that another process locks: Gitea and Forgejo wait 5 s for an answer."""
MARK_SECONDS: Final = 0.005
"""How long the mark of a published request may wait to share another commit."""
# The rows as one JSON text: Python's module releases the interpreter for each row that it fetches or binds, and must
# wait for a busy event loop each time to get it back.
_PENDING: Final = (
    "SELECT json_group_array(json_array(row_id, request_id, CAST(request AS TEXT), attempts)) FROM"
    " (SELECT * FROM requests WHERE published = 0 ORDER BY row_id LIMIT ?)"
)
_PUBLISHED: Final = "UPDATE requests SET published = 1, attempts = attempts + 1 WHERE row_id IN (SELECT value FROM json_each(?))"
_NOT_PUBLISHED: Final = "UPDATE requests SET attempts = attempts + 1, last_failure = ? WHERE row_id IN (SELECT value FROM json_each(?))"
_QUESTIONS: Final = DeliveryQueries(placeholder="?")


class SqliteInbox:
    """Implements `Inbox` and `DeliveryLog`. Open with `SqliteInbox.open`."""

    def __init__(self, database: SqliteDatabase, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self.stored_times: StoredTimes | None = None
        self.lookup_added = asyncio.Event()
        self.reconcile_state: ReconcileState = ReconcileTables(
            self._fetch, self._run, prefix="", placeholder="?", listed="(SELECT value FROM json_each($1))"
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, busy_seconds: float = BUSY_SECONDS) -> AsyncIterator["SqliteInbox"]:
        """Open the inbox in the file of `url`, and create it when missing.

        Raises ConfigurationError, StoreUnavailable, SchemaTooNew.
        """
        place = sqlite_place(url, "inbox")
        migrations = migrations_of("solstice_forge.inbox.schema.sqlite")
        async with SqliteDatabase.open(place, migrations, busy_seconds=busy_seconds) as database:
            yield cls(database, notifier_beside(place, ".notify"))

    async def keep(self, delivery: NewDelivery) -> KeepResult:
        (result,) = await self.keep_all([delivery])
        if isinstance(result, Exception):
            raise result
        return result

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        try:
            result = await self._database.write(lambda connection: keep_all(connection, deliveries))
        except StoreUnavailable as error:
            return [error for _ in deliveries]
        except Exception as error:  # noqa: BLE001  an internal error over one delivery must not fail the others
            if len(deliveries) == 1:
                return [error]
            return [each for delivery in deliveries for each in await self.keep_all([delivery])]
        if any(delivery.lookup is not None for delivery in deliveries):
            self.lookup_added.set()
        if self.stored_times is not None:
            self.stored_times.note(delivery.request_id for delivery in deliveries)
        if any(
            each.decision is Decision.ACCEPTED and delivery.lookup is None
            for delivery, each in zip(deliveries, result, strict=True)
        ):
            self._notifier.notify()
        return result

    async def pending(self, limit: int) -> Sequence[PendingRequest]:
        return await self._database.read(lambda connection: _pending(connection, limit))

    async def published(self, row_ids: Sequence[int], times: Sequence[PublishTimes] = ()) -> None:
        marks = (_json(row_ids),)
        rows = trace_rows(times, self.stored_times)

        def mark(connection: sqlite3.Connection) -> None:
            connection.execute(_PUBLISHED, marks)
            if rows:
                request_traces.insert(connection, rows)

        # Under load the next delivery always follows soon: the marks need no commit and fsync of their own.
        await self._database.write_along(mark, within_seconds=MARK_SECONDS)

    async def take_traces(self, now: float, *, until: float, limit: int) -> Sequence[TracedRequest]:
        if not await self._database.read(request_traces.wait):
            return ()
        return await self._database.write(
            lambda connection: request_traces.take(connection, now, until, limit), synchronous=False
        )

    async def traced(self, row_ids: Sequence[int]) -> None:
        await self._database.write(
            lambda connection: request_traces.remove(connection, _json(row_ids)), synchronous=False
        )

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        marks = (detail, _json(row_ids))
        await self._database.write(lambda connection: connection.execute(_NOT_PUBLISHED, marks).rowcount)

    async def take_lookups(self, now: float, *, until: float, limit: int) -> Sequence[Lookup]:
        return await self._database.write(lambda connection: lookups.take(connection, now, until, limit))

    async def next_lookup_at(self) -> float | None:
        return await self._database.read(lookups.next_at)

    async def lookup_answered(self, row_id: int, request: bytes) -> None:
        if await self._database.write(lambda connection: lookups.complete(connection, row_id, request)):
            self._notifier.notify()

    async def declined(self, row_id: int, reason: str, detail: str) -> None:
        await self._database.write(lambda connection: lookups.decline(connection, row_id, reason, detail))

    async def lookup_postponed(self, row_id: int, at: float, failure: str) -> None:
        await self._database.write(lambda connection: lookups.postpone(connection, row_id, at, failure))

    async def backlog(self) -> int:
        return await self._database.read(_backlog)

    def relaying(self) -> AbstractAsyncContextManager[None]:
        return leader_lock_beside(self._database.place, ".relay")

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._notifier.listen()

    async def entries(
        self, filters: DeliveryFilter, *, limit: int, before: int | None = None
    ) -> DeliveryPage:
        return await paging.entries(self._fetch, _QUESTIONS, filters, limit=limit, before=before)

    async def recorded(self, row_id: int) -> RecordedDelivery | None:
        return await paging.recorded(self._fetch, _QUESTIONS, row_id)

    async def numbers_of(self, delivery_id: str) -> Sequence[int]:
        return await paging.numbers_of(self._fetch, _QUESTIONS, delivery_id)

    async def copies_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        return await paging.copies_of(self._fetch, _QUESTIONS, row_id, limit=limit)

    async def replays_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        return await paging.replays_of(self._fetch, _QUESTIONS, row_id, limit=limit)

    async def strip(self, before: float, limit: int) -> SweepResult:
        return await self._database.write(lambda connection: forget.strip(connection, before, limit))

    async def forget(self, before: float, limit: int) -> SweepResult:
        return await self._database.write(lambda connection: forget.forget(connection, before, limit))

    async def forgettable(self, before: float) -> int:
        return await self._database.read(lambda connection: forget.forgettable(connection, before))

    async def _fetch(self, statement: str, *values: object) -> Sequence[sqlite3.Row]:
        return await self._database.read(lambda connection: connection.execute(statement, values).fetchall())

    async def _run(self, statement: str, *values: object) -> Sequence[sqlite3.Row]:
        return await self._database.write(lambda connection: connection.execute(statement, values).fetchall())


def _pending(connection: sqlite3.Connection, limit: int) -> list[PendingRequest]:
    (rows,) = connection.execute(_PENDING, (limit,)).fetchone()
    return [
        PendingRequest(row_id=row_id, request_id=request_id, request=request.encode(), attempts=attempts)
        for row_id, request_id, request, attempts in orjson.loads(rows)
    ]


def _json(row_ids: Sequence[int]) -> str:
    return orjson.dumps(list(row_ids)).decode()


def _backlog(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM requests WHERE published = 0").fetchone()[0])
