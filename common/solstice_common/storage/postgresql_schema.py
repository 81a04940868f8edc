"""Applies numbered migrations on PostgreSQL.

Several processes may start at once: one of them migrates, the others wait.

Source: postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS; DDL is transactional, so that a step that
fails leaves nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from solstice_common.storage.migrations import Migration, missing

if TYPE_CHECKING:
    import asyncpg

LOCK: Final = 5_075_117_323
"""The advisory lock of the migrating process: a number that is the same in every version."""

APPLIED: Final = "schema_migrations"


async def migrate(
    connection: "asyncpg.Connection[asyncpg.Record]",
    where: str,
    migrations: Sequence[Migration],
    *,
    applied: str = APPLIED,
) -> None:
    """Apply missing steps in one transaction; `where` is for messages.

    `applied` is the table of the applied steps: two schemas in one database have one each.

    Raises what `migrations.missing` raises.
    """
    # A database that is up to date is only read: without a lock, and by a role that may not create tables.
    if not missing(where, await applied_to(connection, applied), migrations):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {applied}"
            " (version integer PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL)"
        )
        for migration in missing(where, await applied_to(connection, applied), migrations):
            await connection.execute(migration.sql)
            await connection.execute(
                f"INSERT INTO {applied} VALUES ($1, $2, now())",  # noqa: S608  a name of ours
                migration.version,
                migration.checksum,
            )


async def applied_to(
    connection: "asyncpg.Connection[asyncpg.Record]", applied: str = APPLIED
) -> Mapping[int, str]:
    """Return the version and checksum of every step that was applied to a database.

    None when it was never migrated.
    """
    if await connection.fetchval("SELECT to_regclass($1)", applied) is None:
        return {}
    rows = await connection.fetch(f"SELECT version, checksum FROM {applied}")  # noqa: S608  a name of ours
    return {row["version"]: row["checksum"] for row in rows}
