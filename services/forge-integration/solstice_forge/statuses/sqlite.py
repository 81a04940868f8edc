"""Statuses in one SQLite database: several processes store them, and one sends them."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from solstice_common.runtime.memory_notifier import Notifier
from solstice_common.storage.sqlite import SqliteDatabase, migrations_of
from solstice_common.storage.sqlite_place import SqlitePlace, leader_lock_beside, notifier_beside
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

BUSY_SECONDS: Final = 10.0
_PLACE: Final = "run_id || '.' || sequence || '.' || revision"
_KEEP: Final = """
INSERT INTO statuses (source_name, repository, commit_sha, context, run_id, sequence, revision, state, final,
    request_id, body, stored_at, next_at)
VALUES (:source_name, :repository, :commit_sha, :context, :run_id, :sequence, :revision, :state, :final,
    :request_id, :body, :now, :now)
ON CONFLICT (source_name, repository, commit_sha, context) DO UPDATE SET
    run_id = excluded.run_id, sequence = excluded.sequence, revision = excluded.revision, state = excluded.state,
    final = excluded.final, request_id = excluded.request_id, body = excluded.body, stored_at = excluded.stored_at,
    next_at = max(
        -- What fails goes on being tried at the pace of its failures.
        CASE WHEN phase = 'pending' AND failures > 0 THEN next_at ELSE excluded.next_at END,
        -- An older one that may still arrive would overtake it.
        CASE WHEN unconfirmed_place = '' OR unconfirmed_place = :place THEN 0 ELSE unconfirmed_until END
    ),
    failures = CASE WHEN phase = 'pending' THEN failures ELSE 0 END,
    failing_since = CASE WHEN phase = 'pending' THEN failing_since END,
    phase = 'pending'
WHERE (excluded.run_id, excluded.sequence, excluded.revision) > (run_id, sequence, revision)
    OR (phase = 'dead' AND (excluded.run_id, excluded.sequence, excluded.revision) = (run_id, sequence, revision))
"""
_WAITS: Final = "source_name = ? AND phase = 'pending' AND call_started_at IS NULL"
_CANDIDATES: Final = 200
"""The most urgent of this many due statuses is chosen."""
_NEXT: Final = f"""
SELECT * FROM (SELECT * FROM statuses WHERE {_WAITS} AND next_at <= ? ORDER BY next_at LIMIT {_CANDIDATES})
ORDER BY (final OR calls = 0) DESC, next_at LIMIT 1
"""  # noqa: S608  constants
_EARLIEST: Final = f"SELECT min(next_at) FROM statuses WHERE {_WAITS}"  # noqa: S608
_RETRY_NOW: Final = f"""
UPDATE statuses SET next_at = CASE WHEN unconfirmed_place = '' OR unconfirmed_place = {_PLACE} THEN ?2 ELSE max(?2, unconfirmed_until) END
WHERE source_name = ?1 AND phase = 'pending' AND call_started_at IS NULL AND failures > 0 AND next_at > ?2
"""  # noqa: S608
_LIMITS: Final = (
    "INSERT OR REPLACE INTO limits (source_name, not_before, paced_until, strikes) VALUES (?, ?, ?, ?)"
)


class SqliteStatuses:
    """A StatusStore. Open with `SqliteStatuses.open`."""

    def __init__(self, database: SqliteDatabase, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier

    @classmethod
    @asynccontextmanager
    async def open(cls, place: SqlitePlace) -> AsyncIterator["SqliteStatuses"]:
        """Open the statuses in that place, and create it when missing.

        Raises StoreUnavailable, SchemaTooNew, ConfigurationError.
        """
        migrations = migrations_of("solstice_forge.statuses.schema.sqlite")
        async with SqliteDatabase.open(place, migrations, busy_seconds=BUSY_SECONDS) as database:
            yield cls(database, notifier_beside(place, ".notify"))

    async def keep(self, statuses: Sequence[ReportableStatus], now: float) -> Sequence[StatusKeepResult]:
        results = await self._database.write(lambda connection: _keep(connection, statuses, now))
        if StatusKeepResult.WANTED in results:
            self._notifier.notify()
        return results

    def lead(self) -> AbstractAsyncContextManager[None]:
        return leader_lock_beside(self._database.place, ".reporter")

    async def take_over(self, now: float, horizon: float) -> int:
        return await self._database.write(lambda connection: _take_over(connection, now, horizon))

    async def take(self, source_name: str, now: float, limits: CallLimits) -> OutgoingStatus | float | None:
        # First a read without a write transaction: most polls find nothing.
        earliest = await self._database.read(
            lambda connection: connection.execute(_EARLIEST, (source_name,)).fetchone()[0]
        )
        if earliest is None or earliest > now:
            return None if earliest is None else float(earliest)
        return await self._database.write(lambda connection: _take(connection, source_name, now, limits))

    async def ended(
        self, outgoing: OutgoingStatus, ending: CallEnding, *, now: float, horizon: float, limits: CallLimits
    ) -> None:
        await self._database.write(
            lambda connection: _ended(connection, outgoing, ending, now=now, horizon=horizon, limits=limits)
        )
        if isinstance(ending, Undeliverable):
            self._notifier.notify()

    async def retry_now(self, source_name: str, now: float) -> None:
        await self._database.write(
            lambda connection: connection.execute(_RETRY_NOW, (source_name, now)).rowcount
        )

    async def limits(self, source_name: str) -> CallLimits:
        row = await self._database.read(
            lambda connection: connection.execute(
                "SELECT not_before, paced_until, strikes FROM limits WHERE source_name = ?", (source_name,)
            ).fetchone()
        )
        return (
            CallLimits() if row is None else CallLimits(not_before=row[0], paced_until=row[1], strikes=row[2])
        )

    async def dead_letters(self, limit: int) -> Sequence[StatusDeadLetter]:
        rows = await self._database.read(
            lambda connection: connection.execute(
                "SELECT * FROM dead_letters ORDER BY row_id LIMIT ?", (limit,)
            ).fetchall()
        )
        return [dead_letter_of(row) for row in rows]

    async def published(self, row_ids: Sequence[int]) -> None:
        ids = json.dumps(list(row_ids))
        await self._database.write(
            lambda connection: (
                connection.execute(
                    "DELETE FROM dead_letters WHERE row_id IN (SELECT value FROM json_each(?))", (ids,)
                ).rowcount
            )
        )

    async def pending(self) -> int:
        return await self._database.read(
            lambda connection: int(
                connection.execute("SELECT count(*) FROM statuses WHERE phase = 'pending'").fetchone()[0]
            )
        )

    async def shown(self, request_id: str) -> Sequence[ContextStatus]:
        rows = await self._database.read(
            lambda connection: connection.execute(
                "SELECT * FROM statuses WHERE request_id = ? ORDER BY context", (request_id,)
            ).fetchall()
        )
        return [context_status_of(row) for row in rows]

    async def purge(self, before: float) -> int:
        return await self._database.write(
            lambda connection: (
                connection.execute(
                    "DELETE FROM statuses WHERE phase <> 'pending' AND stored_at < ?", (before,)
                ).rowcount
            )
        )

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._notifier.listen()


def _keep(
    connection: sqlite3.Connection, statuses: Sequence[ReportableStatus], now: float
) -> list[StatusKeepResult]:
    return [
        StatusKeepResult.WANTED
        if connection.execute(_KEEP, columns_of(status, now)).rowcount
        else StatusKeepResult.STALE
        for status in statuses
    ]


def _take_over(connection: sqlite3.Connection, now: float, horizon: float) -> int:
    rows = connection.execute("SELECT * FROM statuses WHERE call_started_at IS NOT NULL").fetchall()
    for row in rows:
        _set(connection, row["row_id"], orphaned(dict(row), now, horizon))
    return len(rows)


def _take(
    connection: sqlite3.Connection, source_name: str, now: float, limits: CallLimits
) -> OutgoingStatus | float | None:
    row = connection.execute(_NEXT, (source_name, now)).fetchone()
    if row is None:
        earliest = connection.execute(_EARLIEST, (source_name,)).fetchone()[0]
        return None if earliest is None else float(earliest)
    place = place_of(dict(row))
    _set(connection, row["row_id"], {"call_started_at": now, "call_place": place})
    _keep_limits(connection, source_name, limits)
    return outgoing_status_of(dict(row), place, now)


def _ended(
    connection: sqlite3.Connection,
    outgoing: OutgoingStatus,
    ending: CallEnding,
    *,
    now: float,
    horizon: float,
    limits: CallLimits,
) -> None:
    row = connection.execute("SELECT * FROM statuses WHERE row_id = ?", (outgoing.row_id,)).fetchone()
    if row is None or not is_under_way(dict(row), outgoing):
        return
    columns = after(dict(row), outgoing, ending, now=now, horizon=horizon)
    _set(connection, outgoing.row_id, columns)
    _keep_limits(connection, row["source_name"], limits)
    if isinstance(ending, Undeliverable) and columns.get("phase") == ReportPhase.DEAD:
        connection.execute(
            "INSERT INTO dead_letters (request_id, body, headers) VALUES (?, ?, ?)",
            (outgoing.request_id, outgoing.body, json.dumps(dead_letter_headers(outgoing, ending, now))),
        )


def _set(connection: sqlite3.Connection, row_id: int, columns: Mapping[str, Any]) -> None:
    """Set columns of a row; their names come from our code, never from input."""
    assignments = ", ".join(f"{name} = ?" for name in columns)
    connection.execute(
        f"UPDATE statuses SET {assignments} WHERE row_id = ?",  # noqa: S608
        (*columns.values(), row_id),
    )


def _keep_limits(connection: sqlite3.Connection, source_name: str, limits: CallLimits) -> None:
    connection.execute(_LIMITS, (source_name, limits.not_before, limits.paced_until, limits.strikes))
