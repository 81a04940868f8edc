"""The inbox on PostgreSQL: several forge-integrations store deliveries, and one relays."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from solstice_common.runtime.batcher import Batcher
from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_common.storage.postgresql_leader_lock import LeaderLock
from solstice_forge.inbox import paging
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, DeliveryPage, RecordedDelivery
from solstice_forge.inbox.postgresql import forget, lookups, request_traces
from solstice_forge.inbox.postgresql.keep import keep_all
from solstice_forge.inbox.protocol import Decision, KeepResult, Lookup, NewDelivery, PendingRequest
from solstice_forge.inbox.reading import DeliveryQueries
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.inbox.reconcile_tables import ReconcileTables
from solstice_forge.inbox.sweeping import SweepResult
from solstice_forge.inbox.traced_requests import PublishTimes, StoredTimes, TracedRequest, trace_rows

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

CHANNEL: Final = "solstice_inbox"
LOCK: Final = 5_075_117_324
"""Of the leader that relays, the same in every version."""
MIGRATIONS: Final = "inbox_migrations"
"""The table of applied migrations, apart from an orchestrator store's in the same database."""
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
_QUESTIONS: Final = DeliveryQueries(prefix="inbox_")


class PostgreSQLInbox:
    """Implements `Inbox`, `Lookups`, `DeliveryLog` and `InboxCleanup`; opened with `PostgreSQLInbox.open`."""

    def __init__(
        self, url: str, database: PostgreSQLDatabase, keeping: Batcher[NewDelivery, KeepResult]
    ) -> None:
        self.lookup_added = asyncio.Event()
        self.stored_times: StoredTimes | None = None
        self._database = database
        self._keeping = keeping
        self._leader_lock = LeaderLock(url, lambda: database.notify(CHANNEL), lock=LOCK)
        self.reconcile_state: ReconcileState = ReconcileTables(
            database.fetch,
            database.fetch,
            prefix="inbox_",
            placeholder="$",
            listed="(SELECT json_array_elements_text($1::json))",
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["PostgreSQLInbox"]:
        """Open the inbox in the database of `url`, and create it when missing.

        Raises ConfigurationError, StoreUnavailable, SchemaTooNew.
        """
        migrations = migrations_of("solstice_forge.inbox.schema.postgresql")
        async with PostgreSQLDatabase.open(url, migrations, applied=MIGRATIONS) as database:

            async def keep(deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult]:
                return await database.transaction(lambda connection: keep_all(connection, deliveries))

            keeping = Batcher(keep, name=database.where, at_once=1, answer_seconds=KEEP_SECONDS)
            async with aclosing(keeping):
                yield cls(url, database, keeping)

    async def keep(self, delivery: NewDelivery) -> KeepResult:
        (result,) = await self.keep_all([delivery])
        if isinstance(result, Exception):
            raise result
        return result

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        answers = await asyncio.gather(*map(self._keeping, deliveries), return_exceptions=True)
        if self.stored_times is not None:
            self.stored_times.note(delivery.request_id for delivery in deliveries)
        for delivery, answer in zip(deliveries, answers, strict=True):
            if isinstance(answer, BaseException):
                continue
            if delivery.lookup is not None:
                self.lookup_added.set()
            elif answer.decision is Decision.ACCEPTED:
                self._database.notify(CHANNEL)
        return cast("Sequence[KeepResult | Exception]", answers)  # the batcher cancels none

    async def pending(self, limit: int) -> Sequence[PendingRequest]:
        if self._leader_lock.is_lost:
            return []
        return [
            PendingRequest(
                row_id=row["row_id"],
                request_id=row["request_id"],
                request=row["request"],
                attempts=row["attempts"],
            )
            for row in await self._database.fetch(_PENDING, limit)
        ]

    async def published(self, row_ids: Sequence[int], times: Sequence[PublishTimes] = ()) -> None:
        if not times:
            await self._database.fetch(_PUBLISHED, list(row_ids))
            return
        columns = zip(*trace_rows(times, self.stored_times), strict=True)
        await self._database.fetch(request_traces.MARK_AND_INSERT, list(row_ids), *map(list, columns))

    async def take_traces(self, now: float, *, until: float, limit: int) -> Sequence[TracedRequest]:
        if not await self._database.fetch(request_traces.ANY):
            return ()
        return await self._database.transaction(
            lambda connection: request_traces.take(connection, now, until, limit)
        )

    async def traced(self, row_ids: Sequence[int]) -> None:
        await self._database.fetch(request_traces.REMOVE, list(row_ids))

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        await self._database.fetch(_NOT_PUBLISHED, list(row_ids), detail)

    async def backlog(self) -> int:
        (row,) = await self._database.fetch(_BACKLOG)
        return int(row["pending"])

    def relaying(self) -> AbstractAsyncContextManager[None]:
        return self._leader_lock.hold()

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)

    async def take_lookups(self, now: float, *, until: float, limit: int) -> Sequence[Lookup]:
        return await self._database.transaction(
            lambda connection: lookups.take(connection, now, until, limit)
        )

    async def next_lookup_at(self) -> float | None:
        (row,) = await self._database.fetch(lookups.NEXT)
        return None if row["due_at"] is None else float(row["due_at"])

    async def lookup_answered(self, row_id: int, request: bytes) -> None:
        async def work(connection: "Connection") -> bool:
            return await lookups.complete(connection, row_id, request)

        if await self._database.transaction(work):
            self._database.notify(CHANNEL)

    async def declined(self, row_id: int, reason: str, detail: str) -> None:
        async def work(connection: "Connection") -> bool:
            return await lookups.decline(connection, row_id, reason, detail)

        await self._database.transaction(work)

    async def lookup_postponed(self, row_id: int, at: float, failure: str) -> None:
        await self._database.fetch(lookups.LATER, row_id, at, failure)

    async def entries(
        self, filters: DeliveryFilter, *, limit: int, before: int | None = None
    ) -> DeliveryPage:
        return await paging.entries(self._database.fetch, _QUESTIONS, filters, limit=limit, before=before)

    async def recorded(self, row_id: int) -> RecordedDelivery | None:
        return await paging.recorded(self._database.fetch, _QUESTIONS, row_id)

    async def numbers_of(self, delivery_id: str) -> Sequence[int]:
        return await paging.numbers_of(self._database.fetch, _QUESTIONS, delivery_id)

    async def copies_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        return await paging.copies_of(self._database.fetch, _QUESTIONS, row_id, limit=limit)

    async def replays_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        return await paging.replays_of(self._database.fetch, _QUESTIONS, row_id, limit=limit)

    async def strip(self, before: float, limit: int) -> SweepResult:
        return await self._database.transaction(lambda connection: forget.strip(connection, before, limit))

    async def forget(self, before: float, limit: int) -> SweepResult:
        return await self._database.transaction(lambda connection: forget.forget(connection, before, limit))

    async def forgettable(self, before: float) -> int:
        (row,) = await self._database.fetch(forget.COUNT, before)
        return int(row["forgettable"])
