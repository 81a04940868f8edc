"""An orchestrator older than log marks works beside one that upgraded the store."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from solstice_common.storage.migrations import migrate
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from tests.integration.orchestrator.store.test_owner_upgrade import job_row
from tests.old_schemas import insert_postgresql, insert_sqlite, migrations_before
from tests.servers.postgresql import ScratchDatabase

MARKED_SINCE: Final = 20
JOB: Final = job_row(1, "acme/app", "running") | {"attempt": 1, "worker_id": "worker", "lease_until": 2e9}
RUN: Final = {"run_id": JOB["run_id"], "state": "running"}
KEY: Final = AttemptKey(job_id=JOB["job_id"], number=1)
EXPECTED: Final = [
    (1, b"an older one wrote\n", ChunkKind.OUTPUT),
    (2, b"$ test\n", ChunkKind.MARK),
    (3, b"$ test\n", ChunkKind.OUTPUT),
]


async def log_of_both(url: str) -> list[tuple[int, bytes, ChunkKind]]:
    """The log once a new orchestrator has written its chunks 2 and 3."""
    async with open_store(url) as store:
        mark = LogChunk(sequence=2, at=2.0, data=b"$ test\n", kind=ChunkKind.MARK)
        assert await store.append_log(KEY, [mark, LogChunk(sequence=3, at=3.0, data=b"$ test\n")])
        page = await store.log(KEY.job_id)
        assert page is not None
        return [(each.sequence, each.data, each.kind) for each in page.chunks]


async def test_an_older_orchestrator_works_beside_log_marks_in_sqlite(tmp_path: Path) -> None:
    before, steps = migrations_before("sqlite", MARKED_SINCE)
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("PRAGMA foreign_keys = ON")
        migrate(older, path, before)
        insert_sqlite(
            older, "runs", RUN | {"repository": "acme/app", "created_at": 1.0, "request_key": b"key"}
        )
        insert_sqlite(older, "jobs", JOB)
        migrate(older, path, steps)
        older.execute(
            "INSERT INTO log_chunks VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (KEY.job_id, KEY.number, 1, 1.0, EXPECTED[0][1]),
        )
        assert await log_of_both(f"sqlite:///{path}") == EXPECTED
        # What the older one purges leaves nothing behind either.
        older.execute("DELETE FROM log_chunks WHERE job_id = ?", (KEY.job_id,))
        older.execute("DELETE FROM jobs WHERE job_id = ?", (KEY.job_id,))
        assert older.execute("SELECT count(*) FROM log_marks").fetchone() == (0,)


async def test_an_older_orchestrator_works_beside_log_marks_in_postgresql(
    postgresql_database: ScratchDatabase,
) -> None:
    before, steps = migrations_before("postgresql", MARKED_SINCE)
    async with connected(postgresql_database.url) as older:
        await migrate_postgresql(older, postgresql_database.url, before)
        await insert_postgresql(older, "runs", RUN)
        await insert_postgresql(older, "jobs", JOB)
        await migrate_postgresql(older, postgresql_database.url, steps)
        await older.execute(
            "INSERT INTO log_chunks SELECT $1, $2, *"
            " FROM unnest($3::integer[], $4::double precision[], $5::bytea[]) ON CONFLICT DO NOTHING",
            *(KEY.job_id, KEY.number, [1], [1.0], [EXPECTED[0][1]]),
        )
        assert await log_of_both(postgresql_database.url) == EXPECTED
