"""The inbox on PostgreSQL. Several forge-integrations keep deliveries in it; one of them relays."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import Database
from solstice_forge.inbox import paging
from solstice_forge.inbox.log import Entry, Listed, Recorded, Sought
from solstice_forge.inbox.postgresql import forget, lookups
from solstice_forge.inbox.postgresql.groups import Groups
from solstice_forge.inbox.postgresql.keep import keep_all
from solstice_forge.inbox.postgresql.leader_lock import Turn
from solstice_forge.inbox.protocol import Decision, Kept, Lookup, NewDelivery, Pending
from solstice_forge.inbox.reading import Questions
from solstice_forge.inbox.reconcile_state import Reconciling
from solstice_forge.inbox.reconcile_tables import ReconcileTables
from solstice_forge.inbox.sweeping import Swept

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

CHANNEL: Final = "solstice_inbox"
MIGRATIONS: Final = "inbox_migrations"
"""The table of what was applied, beside that of an orchestrators' store in the same database."""
KEEP_SECONDS: Final = 4.0
"""How long a delivery may wait for its commit: Gitea and Forgejo wait 5 s for an answer."""
_PENDING: Final = "SELECT row_id, request_id, request, attempts FROM inbox_requests WHERE NOT published ORDER BY row_id LIMIT $1"
_PUBLISHED: Final = (
    "UPDATE inbox_requests SET published = true, attempts = attempts + 1 WHERE row_id = ANY($1)"
)
_NOT_PUBLISHED: Final = (
    "UPDATE inbox_requests SET attempts = attempts + 1, last_failure = $2 WHERE row_id = ANY($1)"
)
_BACKLOG: Final = "SELECT count(*) AS pending FROM inbox_requests WHERE NOT published"
_QUESTIONS: Final = Questions(prefix="inbox_")


class PostgreSQLInbox:
    """Keeps the promises of `Inbox`, `Lookups`, `DeliveryLog` and `Forgetting`; opened with `PostgreSQLInbox.open`."""

    def __init__(self, url: str, database: Database, keeping: Groups[NewDelivery, Kept]) -> None:
        self.lookup_kept = asyncio.Event()
        self._url = url
        self._database = database
        self._keeping = keeping
        self._turn: Turn | None = None
        self.reconciling: Reconciling = ReconcileTables(
            database.fetch,
            database.fetch,
            prefix="inbox_",
            place="$",
            listed="(SELECT json_array_elements_text($1::json))",
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["PostgreSQLInbox"]:
        """The inbox in the database of `url`, made when missing. ConfigurationError, StoreUnavailable, SchemaTooNew."""
        migrations = migrations_of("solstice_forge.inbox.postgresql.migrations")
        async with Database.open(url, migrations, applied=MIGRATIONS) as database:

            async def keep(deliveries: Sequence[NewDelivery]) -> Sequence[Kept]:
                return await database.transaction(lambda connection: keep_all(connection, deliveries))

            async with Groups.open(database.where, keep, KEEP_SECONDS) as keeping:
                yield cls(url, database, keeping)

    async def keep(self, delivery: NewDelivery) -> Kept:
        kept = await self._keeping(delivery)
        if delivery.lookup is not None:
            self.lookup_kept.set()
        elif kept.decision is Decision.ACCEPTED:
            self._database.ring(CHANNEL)
        return kept

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[Kept | Exception]:
        async def kept(delivery: NewDelivery) -> Kept | Exception:
            try:
                return await self.keep(delivery)
            except Exception as error:  # noqa: BLE001  its own; the others go on
                return error

        return await asyncio.gather(*map(kept, deliveries))

    async def pending(self, limit: int) -> Sequence[Pending]:
        if self._turn is not None and not self._turn.held.is_set():
            return []
        return [
            Pending(
                row_id=row["row_id"],
                request_id=row["request_id"],
                request=row["request"],
                attempts=row["attempts"],
            )
            for row in await self._database.fetch(_PENDING, limit)
        ]

    async def published(self, row_ids: Sequence[int]) -> None:
        await self._database.fetch(_PUBLISHED, list(row_ids))

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        await self._database.fetch(_NOT_PUBLISHED, list(row_ids), detail)

    async def backlog(self) -> int:
        (row,) = await self._database.fetch(_BACKLOG)
        return int(row["pending"])

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        async with Turn.open(self._url, lambda: self._database.ring(CHANNEL)) as turn:
            self._turn = turn
            try:
                yield
            finally:
                self._turn = None

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)

    async def take_lookups(self, now: float, *, until: float, limit: int) -> Sequence[Lookup]:
        return await self._database.transaction(
            lambda connection: lookups.take(connection, now, until, limit)
        )

    async def next_lookup_at(self) -> float | None:
        (row,) = await self._database.fetch(lookups.NEXT)
        return None if row["due_at"] is None else float(row["due_at"])

    async def looked_up(self, row_id: int, request: bytes) -> None:
        async def work(connection: "Connection") -> bool:
            return await lookups.complete(connection, row_id, request)

        if await self._database.transaction(work):
            self._database.ring(CHANNEL)

    async def declined(self, row_id: int, reason: str, detail: str) -> None:
        async def work(connection: "Connection") -> bool:
            return await lookups.decline(connection, row_id, reason, detail)

        await self._database.transaction(work)

    async def look_up_later(self, row_id: int, at: float, failure: str) -> None:
        await self._database.fetch(lookups.LATER, row_id, at, failure)

    async def entries(self, sought: Sought, *, limit: int, before: int | None = None) -> Listed:
        return await paging.entries(self._database.fetch, _QUESTIONS, sought, limit=limit, before=before)

    async def recorded(self, row_id: int) -> Recorded | None:
        return await paging.recorded(self._database.fetch, _QUESTIONS, row_id)

    async def numbers_of(self, delivery_id: str) -> Sequence[int]:
        return await paging.numbers_of(self._database.fetch, _QUESTIONS, delivery_id)

    async def copies_of(self, row_id: int, *, limit: int) -> Sequence[Entry]:
        return await paging.copies_of(self._database.fetch, _QUESTIONS, row_id, limit=limit)

    async def replays_of(self, row_id: int, *, limit: int) -> Sequence[Entry]:
        return await paging.replays_of(self._database.fetch, _QUESTIONS, row_id, limit=limit)

    async def strip(self, before: float, limit: int) -> Swept:
        return await self._database.transaction(lambda connection: forget.strip(connection, before, limit))

    async def forget(self, before: float, limit: int) -> Swept:
        return await self._database.transaction(lambda connection: forget.forget(connection, before, limit))

    async def forgettable(self, before: float) -> int:
        (row,) = await self._database.fetch(forget.COUNT, before)
        return int(row["forgettable"])
