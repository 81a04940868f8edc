"""An upgrade gives existing jobs the owners that new jobs get."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from solstice_common.storage.migrations import migrate
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_orchestrator.scheduling.quotas import owner_of
from tests.old_schemas import insert_postgresql, insert_sqlite, migrations_before
from tests.servers.postgresql import ScratchDatabase

REPOSITORIES: Final = (
    "acme/app",
    "Acme/App",
    "acme/tools/deep/app",
    "app",
    "/app",
    "",
    "größe/app",
    "https://forge.example/acme/app.git",
    "https://forge.example/acme/tools/app",
    "ssh://git@forge.example:2222/acme/app.git",
    "git://forge.example/app.git",
    "https://forge.example",
    "https://forge.example//app/x",
    "file:///srv/acme/app.git",
    "FILE:///srv/acme/app.git",
)
OWNED_SINCE: Final = 12


def job_row(number: int, repository: str, state: str) -> dict[str, Any]:
    return {
        "job_id": f"job-{number}",
        "run_id": f"run-{number}",
        "position": 0,
        "name": "build",
        "runs_on": "linux",
        "priority": 2,
        "repository": repository,
        "needs": "[]",
        "spec": b"{}",
        "state": state,
        "reason": "planned",
        "created_at": 1_800_000_000.0,
        "finished_at": 1_800_000_001.0 if state == "succeeded" else None,
    }


ROWS: Final = [
    job_row(2 * number + offset, repository, state)
    for number, repository in enumerate(REPOSITORIES)
    for offset, state in enumerate(("waiting", "succeeded"))
]
EXPECTED: Final = {row["job_id"]: owner_of(row["repository"]) for row in ROWS}


def test_existing_jobs_get_owners_in_sqlite(tmp_path: Path) -> None:
    before, steps = migrations_before("sqlite", OWNED_SINCE)
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, before)
        for row in ROWS:
            insert_sqlite(connection, "jobs", row)
        migrate(connection, path, steps)
        assert dict(connection.execute("SELECT job_id, owner FROM jobs")) == EXPECTED


async def test_existing_jobs_get_owners_in_postgresql(postgresql_database: ScratchDatabase) -> None:
    before, steps = migrations_before("postgresql", OWNED_SINCE)
    async with connected(postgresql_database.url) as connection:
        await migrate_postgresql(connection, postgresql_database.url, before)
        for row in ROWS:
            await insert_postgresql(connection, "jobs", row)
        await migrate_postgresql(connection, postgresql_database.url, steps)
        rows = await connection.fetch("SELECT job_id, owner FROM jobs")
    assert {row["job_id"]: row["owner"] for row in rows} == EXPECTED
