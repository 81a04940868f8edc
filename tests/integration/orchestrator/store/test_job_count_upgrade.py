"""Runs that are open during an upgrade get their number of jobs."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from solstice_common.storage.migrations import migrate
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from tests.integration.orchestrator.store.test_owner_upgrade import job_row
from tests.old_schemas import insert_postgresql, insert_sqlite, migrations_before
from tests.servers.postgresql import ScratchDatabase

COUNTED_SINCE: Final = 16
JOBS: Final = {"planning": 0, "waiting": 1, "running": 3, "succeeded": 2}
"""Runs by their state, which is their id as well."""
EXPECTED: Final = {"planning": 0, "waiting": 1, "running": 3, "succeeded": 0}
"""Jobs of an ended run are not claimed."""


def run_row(state: str) -> dict[str, Any]:
    return {"run_id": state, "state": state, "finished_at": 1.0 if state == "succeeded" else None}


def job_rows() -> list[dict[str, Any]]:
    return [
        job_row(10 * number + position, "acme/app", "succeeded" if run == "succeeded" else "waiting")
        | {"run_id": run, "position": position, "name": f"build-{position}"}
        for number, (run, count) in enumerate(JOBS.items())
        for position in range(count)
    ]


def test_open_runs_get_their_number_of_jobs_in_sqlite(tmp_path: Path) -> None:
    before, steps = migrations_before("sqlite", COUNTED_SINCE)
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, before)
        own = {"repository": "acme/app", "created_at": 1.0}
        rows = [("runs", run_row(state) | own | {"request_key": state.encode()}) for state in JOBS]
        for table, row in [*rows, *(("jobs", row) for row in job_rows())]:
            insert_sqlite(connection, table, row)
        migrate(connection, path, steps)
        assert dict(connection.execute("SELECT run_id, job_count FROM runs")) == EXPECTED


async def test_open_runs_get_their_number_of_jobs_in_postgresql(postgresql_database: ScratchDatabase) -> None:
    before, steps = migrations_before("postgresql", COUNTED_SINCE)
    async with connected(postgresql_database.url) as connection:
        await migrate_postgresql(connection, postgresql_database.url, before)
        rows = [("runs", run_row(state)) for state in JOBS]
        for table, row in [*rows, *(("jobs", row) for row in job_rows())]:
            await insert_postgresql(connection, table, row)
        await migrate_postgresql(connection, postgresql_database.url, steps)
        found = await connection.fetch("SELECT run_id, job_count FROM runs")
    assert {row["run_id"]: row["job_count"] for row in found} == EXPECTED
