"""Statuses in a PostgreSQL database: several forge-integrations store them, and one sends them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from solstice_common.errors import StoreUnavailable
from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_common.storage.postgresql_leader_lock import LeaderLock
from solstice_forge.remote.call_pacing import CallLimits
from solstice_forge.statuses.call_endings import CallEnding, Undeliverable
from solstice_forge.statuses.changes import after, dead_letter_headers, is_under_way, orphaned, place_of
from solstice_forge.statuses.protocol import (
    ContextStatus,
    OutgoingStatus,
    ReportPhase,
    StatusDeadLetter,
    StatusKeepResult,
)
from solstice_forge.statuses.reportable_status import ReportableStatus
from solstice_forge.statuses.rows import columns_of, context_status_of, dead_letter_of, outgoing_status_of

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

CHANNEL: Final = "solstice_statuses"
MIGRATIONS: Final = "statuses_migrations"
LOCK: Final = 5_075_117_325
"""The leader's advisory lock: our own number, the same in every version."""
_KEEP: Final = """
INSERT INTO forge_statuses AS s (source_name, repository, commit_sha, context, run_id, sequence, revision, state, final,
    request_id, body, stored_at, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
ON CONFLICT (source_name, repository, commit_sha, context) DO UPDATE SET
    run_id = excluded.run_id, sequence = excluded.sequence, revision = excluded.revision, state = excluded.state,
    final = excluded.final, request_id = excluded.request_id, body = excluded.body, stored_at = excluded.stored_at,
    next_at = greatest(
        -- What fails goes on being tried at the pace of its failures.
        CASE WHEN s.phase = 'pending' AND s.failures > 0 THEN s.next_at ELSE excluded.next_at END,
        -- An older one that may still arrive would overtake it.
        CASE WHEN s.unconfirmed_place = '' OR s.unconfirmed_place = $13 THEN 0 ELSE s.unconfirmed_until END
    ),
    failures = CASE WHEN s.phase = 'pending' THEN s.failures ELSE 0 END,
    failing_since = CASE WHEN s.phase = 'pending' THEN s.failing_since END,
    phase = 'pending'
WHERE (excluded.run_id, excluded.sequence, excluded.revision) > (s.run_id, s.sequence, s.revision)
    OR (s.phase = 'dead' AND (excluded.run_id, excluded.sequence, excluded.revision) = (s.run_id, s.sequence, s.revision))
RETURNING true
"""
_WAITS: Final = "source_name = $1 AND phase = 'pending' AND call_started_at IS NULL"
_CANDIDATES: Final = 200
"""The most urgent of this many due statuses is chosen."""
_NEXT: Final = f"""
SELECT * FROM (SELECT * FROM forge_statuses WHERE {_WAITS} AND next_at <= $2 ORDER BY next_at LIMIT {_CANDIDATES}) AS due
ORDER BY (final OR calls = 0) DESC, next_at LIMIT 1
"""  # noqa: S608  constants
_EARLIEST: Final = f"SELECT next_at FROM forge_statuses WHERE {_WAITS} ORDER BY next_at LIMIT 1"  # noqa: S608
_RETRY_NOW: Final = f"""
UPDATE forge_statuses SET next_at = CASE
    WHEN unconfirmed_place = '' OR unconfirmed_place = run_id || '.' || sequence || '.' || revision THEN $2::float8
    ELSE greatest($2::float8, unconfirmed_until) END
WHERE {_WAITS} AND failures > 0 AND next_at > $2::float8
"""  # noqa: S608
_LIMITS: Final = """
INSERT INTO forge_status_limits (source_name, not_before, paced_until, strikes) VALUES ($1, $2, $3, $4)
ON CONFLICT (source_name) DO UPDATE SET
    not_before = excluded.not_before, paced_until = excluded.paced_until, strikes = excluded.strikes
"""
_OF_KEY: Final = (
    "source_name",
    "repository",
    "commit_sha",
    "context",
    "run_id",
    "sequence",
    "revision",
    "state",
    "final",
    "request_id",
    "body",
    "now",
    "place",
)


class PostgreSQLStatuses:
    """A StatusStore. Open with `PostgreSQLStatuses.open`."""

    def __init__(self, url: str, database: PostgreSQLDatabase) -> None:
        self._database = database
        self._leader_lock = LeaderLock(url, lambda: database.notify(CHANNEL), lock=LOCK)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["PostgreSQLStatuses"]:
        """Open the statuses in the database of `url`.

        Raises ConfigurationError, StoreUnavailable, SchemaTooNew.
        """
        migrations = migrations_of("solstice_forge.statuses.schema.postgresql")
        async with PostgreSQLDatabase.open(url, migrations, connections=4, applied=MIGRATIONS) as database:
            yield cls(url, database)

    async def keep(self, statuses: Sequence[ReportableStatus], now: float) -> Sequence[StatusKeepResult]:
        # Always in the order of the key: two writers of the same contexts then wait without a deadlock.
        order = sorted(range(len(statuses)), key=lambda index: _key(statuses[index]))

        async def work(connection: "Connection") -> Sequence[StatusKeepResult]:
            results = [StatusKeepResult.STALE] * len(statuses)
            for index in order:
                columns = columns_of(statuses[index], now)
                if await connection.fetchval(_KEEP, *(columns[name] for name in _OF_KEY)):
                    results[index] = StatusKeepResult.WANTED
            return results

        answers = await self._database.transaction(work)
        if StatusKeepResult.WANTED in answers:
            self._database.notify(CHANNEL)
        return answers

    def lead(self) -> AbstractAsyncContextManager[None]:
        return self._leader_lock.hold()

    async def take_over(self, now: float, horizon: float) -> int:
        async def work(connection: "Connection") -> int:
            rows = await connection.fetch(
                "SELECT * FROM forge_statuses WHERE call_started_at IS NOT NULL FOR UPDATE"
            )
            for row in rows:
                await _set(connection, row["row_id"], orphaned(dict(row), now, horizon))
            return len(rows)

        return await self._database.transaction(work)

    async def take(self, source_name: str, now: float, limits: CallLimits) -> OutgoingStatus | float | None:
        if not self._leader_lock.acquired.is_set():
            raise StoreUnavailable(self._database.where, "another process reports to the forges now")
        earliest = await self._database.fetch(_EARLIEST, source_name)
        if not earliest or earliest[0]["next_at"] > now:
            return float(earliest[0]["next_at"]) if earliest else None

        async def work(connection: "Connection") -> OutgoingStatus | None:
            row = await connection.fetchrow(_NEXT, source_name, now)
            if row is None:
                return None
            # Read again, and locked: a newer one may have come since.
            row = await connection.fetchrow(
                "SELECT * FROM forge_statuses WHERE row_id = $1 AND phase = 'pending' AND next_at <= $2 FOR UPDATE",
                row["row_id"],
                now,
            )
            if row is None:
                return None
            place = place_of(dict(row))
            await _set(connection, row["row_id"], {"call_started_at": now, "call_place": place})
            await _keep_limits(connection, source_name, limits)
            return outgoing_status_of(dict(row), place, now)

        return await self._database.transaction(work)

    async def ended(
        self, outgoing: OutgoingStatus, ending: CallEnding, *, now: float, horizon: float, limits: CallLimits
    ) -> None:
        async def work(connection: "Connection") -> None:
            row = await connection.fetchrow(
                "SELECT * FROM forge_statuses WHERE row_id = $1 FOR UPDATE", outgoing.row_id
            )
            if row is None or not is_under_way(dict(row), outgoing):
                return
            columns = after(dict(row), outgoing, ending, now=now, horizon=horizon)
            await _set(connection, outgoing.row_id, columns)
            await _keep_limits(connection, row["source_name"], limits)
            if isinstance(ending, Undeliverable) and columns.get("phase") == ReportPhase.DEAD:
                await connection.execute(
                    "INSERT INTO forge_status_dead_letters (request_id, body, headers) VALUES ($1, $2, $3)",
                    outgoing.request_id,
                    outgoing.body,
                    json.dumps(dead_letter_headers(outgoing, ending, now)),
                )

        await self._database.transaction(work)
        if isinstance(ending, Undeliverable):
            self._database.notify(CHANNEL)

    async def retry_now(self, source_name: str, now: float) -> None:
        await self._database.fetch(_RETRY_NOW, source_name, now)

    async def limits(self, source_name: str) -> CallLimits:
        rows = await self._database.fetch(
            "SELECT not_before, paced_until, strikes FROM forge_status_limits WHERE source_name = $1",
            source_name,
        )
        return CallLimits(**dict(rows[0])) if rows else CallLimits()

    async def dead_letters(self, limit: int) -> Sequence[StatusDeadLetter]:
        rows = await self._database.fetch(
            "SELECT * FROM forge_status_dead_letters ORDER BY row_id LIMIT $1", limit
        )
        return [dead_letter_of(dict(row)) for row in rows]

    async def published(self, row_ids: Sequence[int]) -> None:
        await self._database.fetch(
            "DELETE FROM forge_status_dead_letters WHERE row_id = ANY($1)", list(row_ids)
        )

    async def pending(self) -> int:
        (row,) = await self._database.fetch(
            "SELECT count(*) AS pending FROM forge_statuses WHERE phase = 'pending'"
        )
        return int(row["pending"])

    async def shown(self, request_id: str) -> Sequence[ContextStatus]:
        rows = await self._database.fetch(
            "SELECT * FROM forge_statuses WHERE request_id = $1 ORDER BY context", request_id
        )
        return [context_status_of(dict(row)) for row in rows]

    async def purge(self, before: float) -> int:
        rows = await self._database.fetch(
            "DELETE FROM forge_statuses WHERE phase <> 'pending' AND stored_at < $1 RETURNING row_id", before
        )
        return len(rows)

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._database.listen(CHANNEL)


def _key(status: ReportableStatus) -> tuple[str, str, str, str]:
    return status.source_name, status.repository, status.commit_sha, status.context


async def _set(connection: "Connection", row_id: int, columns: Mapping[str, Any]) -> None:
    """Set columns of a row; their names come from our code, never from input."""
    assignments = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, start=2))
    await connection.execute(
        f"UPDATE forge_statuses SET {assignments} WHERE row_id = $1",  # noqa: S608
        row_id,
        *columns.values(),
    )


async def _keep_limits(connection: "Connection", source_name: str, limits: CallLimits) -> None:
    await connection.execute(_LIMITS, source_name, limits.not_before, limits.paced_until, limits.strikes)
