"""Copies the tables of a schema out of PostgreSQL, and into a new database.

Rows are in COPY's text format, which every version of the server reads.

Source: postgresql.org/docs/current/sql-copy.html, .../transaction-iso.html#XACT-REPEATABLE-READ.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from solstice_cli.backup.archive import MemberWriter
from solstice_cli.backup.errors import RestoreRefused
from solstice_cli.backup.manifest import ArchiveMember, DatabaseCopy, SequenceState
from solstice_common.storage.migrations import Migration
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

_TABLE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)|ALTER TABLE \w+ RENAME TO (\w+)")
_SEQUENCE: Final = re.compile(r"CREATE SEQUENCE (\w+)")
_COLUMNS: Final = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    " AND table_name = $1 AND is_generated = 'NEVER' ORDER BY ordinal_position"
)
_IDENTITIES: Final = (
    "SELECT pg_get_serial_sequence(table_name, column_name) FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name = ANY($1) AND is_identity = 'YES'"
)
_OTHERS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
)
_SESSION: Final = (
    # A copy may take long, and nothing else of this session may wait for it.
    "SET idle_in_transaction_session_timeout = 0",
    "SET statement_timeout = 0",
    # Texts mean the same on every server.
    "SET datestyle = 'ISO'",
    "SET timezone = 'UTC'",
)


@asynccontextmanager
async def session(url: str) -> AsyncIterator["Connection"]:
    """Connect for a copy."""
    async with connected(url) as connection:
        for statement in _SESSION:
            await connection.execute(statement)
        yield connection


def tables_named(migrations: Sequence[Migration]) -> Sequence[str]:
    """Return the tables that migrations name, in that order; some may be gone."""
    found = (match for migration in migrations for match in _TABLE.finditer(migration.sql))
    return [*dict.fromkeys(made or renamed for made, renamed in (match.groups() for match in found))]


async def tables_of(connection: "Connection", migrations: Sequence[Migration]) -> Sequence[str]:
    """Return the tables of a schema that exist, each after those that it refers to."""
    return [
        name
        for name in tables_named(migrations)
        if await connection.fetchval("SELECT to_regclass($1)", name) is not None
    ]


async def columns_of(connection: "Connection", table: str) -> Sequence[str]:
    """Return the columns of a table that are not computed."""
    return [row[0] for row in await connection.fetch(_COLUMNS, table)]


async def copy_out(connection: "Connection", table: str, columns: Sequence[str], member: MemberWriter) -> int:
    """Write the rows of a table; return how many there were."""

    async def write(data: bytes) -> None:
        member.write(data)

    return _count(await connection.copy_from_table(table, output=write, columns=[*columns], format="text"))


async def sequences_of(
    connection: "Connection", tables: Sequence[str], migrations: Sequence[Migration]
) -> Mapping[str, SequenceState]:
    """Return where each sequence of a schema goes on counting."""
    names = [name for migration in migrations for name in _SEQUENCE.findall(migration.sql)]
    names += [row[0] for row in await connection.fetch(_IDENTITIES, list(tables))]
    states = {}
    for name in names:
        row = await connection.fetchrow(f"SELECT last_value, is_called FROM {name}")  # noqa: S608  names of our schemas
        assert row is not None  # noqa: S101  a sequence is one row
        states[name.rpartition(".")[2]] = SequenceState(last_value=row[0], is_called=row[1])
    return states


async def is_restored(connection: "Connection", where: str, copy: DatabaseCopy, backup_id: str) -> bool:
    """Whether an earlier, interrupted restore of this backup has filled the database.

    False for a database without tables of this schema. RestoreRefused for one with other rows, or that is in use.
    """
    if others := await connection.fetchval(_OTHERS):
        raise RestoreRefused(
            f"the database {where} has {others} other connections of Solstice CI: stop every service and command on it"
        )
    marked = copy.members[0].table
    if await connection.fetchval("SELECT to_regclass($1)", marked) is None:
        return False
    mark = await connection.fetchval("SELECT obj_description(to_regclass($1), 'pg_class')", marked)
    counts = {member.table: member.rows for member in copy.members}
    if mark == _mark(backup_id) and all([await _rows(connection, each) == counts[each] for each in counts]):
        return True
    raise RestoreRefused(
        f"the database {where} has a {copy.name} already (table {marked}): "
        "restore into a new, empty database (createdb)"
    )


async def copy_in(
    connection: "Connection",
    where: str,
    copy: DatabaseCopy,
    migrations: Sequence[Migration],
    *,
    applied: str,
    backup_id: str,
    blocks: Callable[[ArchiveMember], Iterator[bytes]],
) -> None:
    """Make the schema as it was, and fill it; the services migrate it later."""
    had = [each for each in migrations if each.version in copy.migrations]
    await migrate(connection, where, had, applied=applied)
    tables = await tables_of(connection, had)
    if [member.table for member in copy.members] != tables:
        raise RestoreRefused(f"the backup of {copy.name} does not have the tables of its migrations")
    for member in copy.members:
        if list(member.columns) != await columns_of(connection, member.table):
            raise RestoreRefused(f"the backup does not have the columns of {member.table}")
        await connection.execute(f"DELETE FROM {member.table}")  # noqa: S608  what migrations wrote; names of our schemas
        rows = _count(
            await connection.copy_to_table(
                member.table,
                source=_asynchronous(blocks(member)),
                columns=list(member.columns),
                format="text",
            )
        )
        if rows != member.rows:
            raise RestoreRefused(f"of {member.rows} rows for {member.table}, {rows} arrived")
    for name, state in copy.sequences.items():
        await connection.execute(
            "SELECT setval($1::regclass, $2, $3)", name, state.last_value, state.is_called
        )
    # So that the same restore, started again after an interruption, knows this part of its work.
    await connection.execute(f"COMMENT ON TABLE {tables[0]} IS '{_mark(backup_id)}'")


def _mark(backup_id: str) -> str:
    return f"restored from the backup {re.sub('[^0-9a-f-]', '', backup_id)}"


async def _rows(connection: "Connection", table: str) -> int:
    return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))  # noqa: S608  names of our schemas


def _count(status: str) -> int:
    return int(status.rpartition(" ")[2])


async def _asynchronous(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
