"""What an older version stored in the inbox is there under the names of today."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.postgresql.inbox import MIGRATIONS
from solstice_forge.inbox.reconcile_state import RefHead, ResendRecord
from tests.inboxes import NOON
from tests.old_schemas import insert_postgresql, insert_sqlite
from tests.servers.postgresql import ScratchDatabase

HOOK: Final = "/repos/r/o/hooks/1"
RESEND: Final[dict[str, Any]] = {"source_name": "acme", "delivery_id": "d-1", "times": 2, "asked_at": NOON}
CURSOR: Final[dict[str, Any]] = {"source_name": "acme", "hook": HOOK, "looked_to": 5.0}


def delivery_row(row_id: int) -> dict[str, Any]:
    return {
        "row_id": row_id,
        "source_name": "acme",
        "delivery_id": f"d-{row_id}",
        "event_name": "push",
        "received_at": NOON,
        "reason": "push",
        "detail": "",
        "repo_full_name": f"river/{row_id}",
        "request_id": None,
        "headers": "{}",
        "body": b"",
    }


def nothing(_source: str, _event: str, _body: bytes) -> RefHead | None:
    return None


async def check(inbox: InboxStore) -> None:
    tables = inbox.reconcile_state
    assert await tables.resends("acme", ["d-1"]) == {"d-1": ResendRecord(times=2, requested_at=NOON)}
    assert await tables.cursor("acme", HOOK) == 5.0
    await tables.learn(NOON + 60, set(), nothing)
    assert await tables.repositories("acme") == ["river/3"]
    assert (await inbox.strip(NOON + 60, 10)).rows == 1


async def test_older_deliveries_are_there_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    steps = [step for step in migrations_of("solstice_forge.inbox.schema.sqlite") if step.version < 7]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, steps)
        for row_id in (1, 2, 3):
            insert_sqlite(connection, "deliveries", delivery_row(row_id))
        connection.execute("UPDATE swept SET stripped_to = 2")
        connection.execute("UPDATE reconcile_read SET read_to = 2")
        insert_sqlite(connection, "reconcile_asked", RESEND)
        insert_sqlite(connection, "reconcile_hooks", CURSOR)
    async with open_inbox(f"sqlite:///{path}") as inbox:
        await check(inbox)


async def test_older_deliveries_are_there_in_postgresql(postgresql_database: ScratchDatabase) -> None:
    steps = [step for step in migrations_of("solstice_forge.inbox.schema.postgresql") if step.version < 4]
    async with connected(postgresql_database.url) as connection:
        await migrate_postgresql(connection, postgresql_database.url, steps, applied=MIGRATIONS)
        for row_id in (1, 2, 3):
            await insert_postgresql(connection, "inbox_deliveries", delivery_row(row_id))
        await connection.execute("UPDATE inbox_swept SET stripped_to = 2")
        await connection.execute("UPDATE inbox_reconcile_read SET read_to = 2")
        await insert_postgresql(connection, "inbox_reconcile_asked", RESEND)
        await insert_postgresql(connection, "inbox_reconcile_hooks", CURSOR)
    async with open_inbox(postgresql_database.url) as inbox:
        await check(inbox)
