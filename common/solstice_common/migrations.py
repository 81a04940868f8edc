"""Numbered SQL files that build a SQLite schema, applied once, in order, in one transaction."""

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from solstice_common.errors import ConfigurationError, SchemaTooNew


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of a schema; once released, its text never changes."""

    version: int
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_of(package: str) -> tuple[Migration, ...]:
    """The files `NNNN_what.sql` of a package, in order."""
    names = sorted(entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql"))
    return tuple(Migration(int(name[:4]), files(package).joinpath(name).read_text("utf-8")) for name in names)


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Apply what is missing inside the open transaction; `path` is for messages.

    Raises SchemaTooNew when the file knows a version that we do not, ConfigurationError when a step that was
    applied has another text here.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations"
        " (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, applied_at REAL NOT NULL)"
    )
    applied = {
        int(row["version"]): row["checksum"] for row in connection.execute("SELECT * FROM schema_migrations")
    }
    known = max((migration.version for migration in migrations), default=0)
    if applied and max(applied) > known:
        raise SchemaTooNew(str(path), max(applied), known)
    for migration in migrations:
        if migration.version not in applied:
            for statement in statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_migrations VALUES (?, ?, ?)",
                (migration.version, migration.checksum, time.time()),
            )
        elif applied[migration.version] != migration.checksum:
            raise ConfigurationError(
                f"the database {path} was built by another text of migration {migration.version}; "
                "it belongs to a different build of Solstice CI"
            )


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one or more whole lines each; `executescript` would end the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        # A last statement without its semicolon; what is only a comment does nothing when executed.
        yield statement
