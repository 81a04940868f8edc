"""Applies numbered SQL files that build a schema, each once, in order.

All missing ones are applied in one transaction.

The rules are the same for every database. This module also applies them on SQLite; `postgresql_schema` does
so on PostgreSQL.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from solstice_common.errors import ConfigurationError, SchemaTooNew
from solstice_common.storage.sqlite_place import SqlitePlace


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of a schema; once released, its text never changes."""

    version: int
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_of(package: str) -> tuple[Migration, ...]:
    """Return the files `NNNN_what.sql` of a package, in order."""
    names = sorted(entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql"))
    return tuple(Migration(int(name[:4]), files(package).joinpath(name).read_text("utf-8")) for name in names)


def missing(where: str, applied: Mapping[int, str], migrations: Sequence[Migration]) -> Sequence[Migration]:
    """Return the steps that a database still needs.

    `applied` has the applied ones (version: checksum).

    `where` is for messages. Raises SchemaTooNew when the database knows a version that we do not,
    ConfigurationError when a step that was applied has another text here.
    """
    known = max((migration.version for migration in migrations), default=0)
    if applied and max(applied) > known:
        raise SchemaTooNew(where, max(applied), known)
    for migration in migrations:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise ConfigurationError(
                f"the database {where} was built by another text of migration {migration.version}; "
                "it belongs to a different build of Solstice CI"
            )
    return tuple(migration for migration in migrations if migration.version not in applied)


def migrate(connection: sqlite3.Connection, place: SqlitePlace, migrations: Sequence[Migration]) -> None:
    """Apply missing steps inside an open transaction of SQLite; `place` is for messages.

    Raises what `missing` raises.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations"
        " (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, applied_at REAL NOT NULL)"
    )
    for migration in missing(str(place), applied_to(connection), migrations):
        for statement in statements(migration.sql):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_migrations VALUES (?, ?, ?)",
            (migration.version, migration.checksum, time.time()),
        )


def applied_to(connection: sqlite3.Connection) -> Mapping[int, str]:
    """Return the version and checksum of every step that was applied to an SQLite file.

    None when it was never migrated.
    """
    there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'"
    if connection.execute(there).fetchone() is None:
        return {}
    rows = connection.execute("SELECT version, checksum FROM schema_migrations").fetchall()
    return {int(row[0]): str(row[1]) for row in rows}


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script, one or more whole lines each.

    `executescript` would end the transaction around it.
    """
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        # A last statement without its semicolon; a mere comment does nothing when executed.
        yield statement
