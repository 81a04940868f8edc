"""A dead letter carries the signature that an older store kept in another table."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.storage.migrations import migrate
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Reason
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.protocol import OutboxKind
from solstice_orchestrator.store.records.rows import key
from tests.builders import job_request
from tests.old_schemas import insert_postgresql, insert_sqlite, migrations_before
from tests.servers.postgresql import ScratchDatabase
from tests.stores import WORKER, ManualClock

BESIDE_BODIES_SINCE: Final = 26
NOW: Final = 1_800_000_000.0
SIGNED, UNSIGNED = job_request(), job_request()
RUNS: Final = {
    f"00000000-0000-7000-8000-00000000000{number}": request
    for number, request in enumerate((SIGNED, UNSIGNED), start=1)
}
SIGNATURE: Final = {"run_id": next(iter(RUNS)), "signature": "an old signature"}


async def signatures_of_dead_letters(url: str, clock: Any = None) -> dict[str, object]:
    """Those that the upgraded store publishes, by request."""
    async with open_store(url, **({"clock": clock} if clock else {})) as store:
        for _ in range(MAX_ATTEMPTS):
            if clock:
                clock.forward(3600.0)
            for task in await store.claim_planning(WORKER, 10):
                await store.not_planned(task, Reason.CHECKOUT_FAILED, "no route to host")
        return {
            row.request_id: row.headers.get(SIGNATURE_HEADER)
            for row in await store.outbox(100)
            if row.kind is OutboxKind.DEAD_LETTER
        }


async def test_a_dead_letter_carries_its_older_signature_in_sqlite(tmp_path: Path) -> None:
    before, _ = migrations_before("sqlite", BESIDE_BODIES_SINCE)
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        migrate(older, path, before)
        for age, (run_id, request) in enumerate(RUNS.items(), start=1):
            run = {"age": age, "run_id": run_id, "request_key": key(request.request_id)}
            insert_sqlite(
                older, "runs", run | {"repository": "acme/app", "state": "planning", "created_at": NOW}
            )
            insert_sqlite(older, "requests", {"age": age, "body": request.encode()})
        insert_sqlite(older, "request_signatures", SIGNATURE)
    assert await signatures_of_dead_letters(f"sqlite:///{path}", ManualClock(NOW)) == {
        SIGNED.request_id: SIGNATURE["signature"],
        UNSIGNED.request_id: None,
    }


async def test_a_dead_letter_carries_its_older_signature_in_postgresql(
    postgresql_database: ScratchDatabase,
) -> None:
    before, steps = migrations_before("postgresql", BESIDE_BODIES_SINCE)
    async with connected(postgresql_database.url) as older:
        await migrate_postgresql(older, postgresql_database.url, before)
        for run_id, request in RUNS.items():
            row = {"run_id": run_id, "request_key": key(request.request_id), "body": request.encode()}
            await insert_postgresql(older, "requests", row | {"repository": "acme/app", "created_at": NOW})
            await insert_postgresql(older, "runs", {"run_id": run_id, "state": "planning"})
        await insert_postgresql(older, "request_signatures", SIGNATURE)
        await migrate_postgresql(older, postgresql_database.url, steps)
        # Its clock cannot be set: what is told of a dead letter is tested with every store.
        rows = await older.fetch("SELECT run_id, signature FROM requests ORDER BY run_id")
    assert [row["signature"] for row in rows] == [SIGNATURE["signature"], None]
