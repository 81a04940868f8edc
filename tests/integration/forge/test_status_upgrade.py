"""Statuses that an older version stored are there under the names of today."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_forge.statuses.postgresql import MIGRATIONS
from solstice_forge.statuses.protocol import OutgoingStatus, ReportPhase, StatusStore
from solstice_forge.statuses.status_service import open_statuses
from tests.old_schemas import insert_postgresql, insert_sqlite
from tests.servers.postgresql import ScratchDatabase
from tests.statuses import run_id

NOON = 1_790_000_000.0
STATUS: dict[str, Any] = {
    "source_name": "forgejo",
    "repository": "river/app",
    "commit_sha": "c" * 40,
    "context": "solstice/build",
    "run_id": run_id(1),
    "sequence": 3,
    "revision": 0,
    "state": "succeeded",
    "final": True,
    "request_id": "request-1",
    "body": b"{}",
    "kept_at": NOON,
    "phase": "told",
    "next_at": NOON,
    "told_at": NOON + 1,
    "told_state": "succeeded",
}
UNDER_WAY: dict[str, Any] = {
    **STATUS,
    "context": "solstice/test",
    "request_id": "request-3",
    "phase": "pending",
    "flying_since": NOON,
    "flying": f"{run_id(1)}.2.0",
    "unsure": f"{run_id(1)}.1.0",
    "unsure_until": NOON + 40,
}
"""A newer status waits while the call with an older one is under way."""
DEAD_LETTER: dict[str, Any] = {"request_id": "request-2", "body": b"{}", "headers": "{}"}


async def check(store: StatusStore) -> None:
    (shown,) = await store.shown("request-1")
    assert (shown.phase, shown.reported_state, shown.reported_at) == (
        ReportPhase.REPORTED,
        "succeeded",
        NOON + 1,
    )
    (dead_letter,) = await store.dead_letters(10)
    assert (dead_letter.request_id, dead_letter.body) == ("request-2", b"{}")
    async with store.lead():
        assert await store.take_over(NOON + 1, horizon=30.0) == 1
        limits = await store.limits("forgejo")
        assert await store.take("forgejo", NOON + 39, limits) == NOON + 40
        assert isinstance(await store.take("forgejo", NOON + 40, limits), OutgoingStatus)
    assert await store.purge(NOON + 1) == 1
    assert await store.shown("request-1") == []


async def test_older_statuses_are_there_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db.statuses"
    first, *_ = migrations_of("solstice_forge.statuses.schema.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, [first])
        insert_sqlite(connection, "statuses", STATUS)
        insert_sqlite(connection, "statuses", UNDER_WAY)
        insert_sqlite(connection, "letters", DEAD_LETTER)
    async with open_statuses(f"sqlite:///{tmp_path / 'inbox.db'}") as store:
        await check(store)


async def test_older_statuses_are_there_in_postgresql(postgresql_database: ScratchDatabase) -> None:
    first, *_ = migrations_of("solstice_forge.statuses.schema.postgresql")
    async with connected(postgresql_database.url) as connection:
        await migrate_postgresql(connection, postgresql_database.url, [first], applied=MIGRATIONS)
        await insert_postgresql(connection, "forge_statuses", STATUS)
        await insert_postgresql(connection, "forge_statuses", UNDER_WAY)
        await insert_postgresql(connection, "forge_status_letters", DEAD_LETTER)
    async with open_statuses(postgresql_database.url) as store:
        await check(store)
