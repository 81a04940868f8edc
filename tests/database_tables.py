"""Renders the tables of the databases from migrated SQLite files.

What PostgreSQL has otherwise is declared here, and a test compares it with a server.
"""

import itertools
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import solstice_forge.inbox.schema
import solstice_forge.statuses.schema
import solstice_orchestrator.store.schema
from solstice_common.storage.migrations import migrate, migrations_of
from tests.markdown import table


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema of a service, and what PostgreSQL has otherwise than SQLite."""

    package: str
    tables: Mapping[str, str]
    """What each table holds."""
    prefix: str = ""
    """Of its names in PostgreSQL, where the schema may share a database."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names in PostgreSQL that are not the name in SQLite after the prefix."""
    only_sqlite: frozenset[str] = frozenset()
    """Columns, as `table.column`, that PostgreSQL does not have."""
    only_postgresql: frozenset[str] = frozenset()

    def name_in_postgresql(self, name: str) -> str:
        return self.names.get(name, f"{self.prefix}{name}")


_OF_THE_REQUEST: Final = (
    "change_key",
    "created_at",
    "idempotency_key",
    "only_jobs",
    "pushed_at",
    "ref",
    "repository",
    "request_key",
    "rerun_of",
)
"""What never changes: SQLite has it in the run's row, PostgreSQL beside the message."""
_GENERATED: Final = ("due_at", "of_several", "open_group", "overdue_at", "to_plan", "unsuccessful")
"""Columns that PostgreSQL computes for its indexes."""

SCHEMAS: Final[Mapping[str, Schema]] = {
    "store": Schema(
        "solstice_orchestrator.store.schema",
        solstice_orchestrator.store.schema.TABLES,
        only_sqlite=frozenset(
            {
                *(f"{name}.age" for name in ("jobs", "requests", "runs")),
                *(f"log_marks.{name}" for name in ("attempt", "job_id", "kind", "sequence")),
                *(f"runs.{name}" for name in _OF_THE_REQUEST),
            }
        ),
        only_postgresql=frozenset(
            {
                "log_chunks.kind",
                "requests.run_id",
                *(f"requests.{name}" for name in _OF_THE_REQUEST),
                *(f"runs.{name}" for name in _GENERATED),
            }
        ),
    ),
    "inbox": Schema(
        "solstice_forge.inbox.schema",
        solstice_forge.inbox.schema.TABLES,
        prefix="inbox_",
        names={"schema_migrations": "inbox_migrations"},
    ),
    "statuses": Schema(
        "solstice_forge.statuses.schema",
        solstice_forge.statuses.schema.TABLES,
        prefix="forge_status_",
        names={"statuses": "forge_statuses", "schema_migrations": "statuses_migrations"},
    ),
}


def schema_tables(name: str) -> str:
    """Each table of a schema: what it holds, its columns, its keys and indexes."""
    schema = SCHEMAS[name]
    with closing(migrated(schema)) as connection:
        found = set(columns_of(connection))
        if found != set(schema.tables):
            raise LookupError(f"tables without a sentence, or the reverse: {found ^ set(schema.tables)}")
        return "\n".join(
            f"### {name}: `{each}`\n\n{sentence}\n\n{_columns(connection, each)}\n{_keys(connection, each)}"
            for each, sentence in schema.tables.items()
        )


def differences_table() -> str:
    """What PostgreSQL has otherwise: names of tables, and columns."""
    rows = [
        (
            name,
            ", ".join(
                f"`{schema.name_in_postgresql(each)}`"
                for each in schema.tables
                if schema.name_in_postgresql(each) != each
            ),
            _by_table(schema.only_sqlite),
            _by_table(schema.only_postgresql),
        )
        for name, schema in SCHEMAS.items()
    ]
    return table(
        ("schema", "names of its tables on PostgreSQL", "only on SQLite", "only on PostgreSQL"), rows
    )


def migrated(schema: Schema) -> sqlite3.Connection:
    """A new SQLite database with the whole schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, Path(schema.package), migrations_of(f"{schema.package}.sqlite"))
    return connection


def columns_of(connection: sqlite3.Connection) -> Mapping[str, Sequence[str]]:
    """The names of the columns of each table."""
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return {
        name: [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))]
        for (name,) in tables
    }


def _by_table(columns: Collection[str]) -> str:
    pairs = sorted(each.split(".") for each in columns)
    return "; ".join(
        f"`{name}`: {_listed([(column,) for _, column in group])}"
        for name, group in itertools.groupby(pairs, key=lambda pair: pair[0])
    )


def _columns(connection: sqlite3.Connection, name: str) -> str:
    # A number that is the primary key is the row's number, which SQLite gives: it is never null.
    rows = connection.execute(
        """SELECT name, type, "notnull" OR (pk AND type = 'INTEGER'), dflt_value FROM pragma_table_info(?)""",
        (name,),
    ).fetchall()
    return table(
        ("column", "type", "null", "default"),
        [
            (f"`{column}`", kind, "no" if not_null else "yes", "" if default is None else f"`{default}`")
            for column, kind, not_null, default in rows
        ],
    )


def _keys(connection: sqlite3.Connection, name: str) -> str:
    primary = connection.execute(
        "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (name,)
    ).fetchall()
    rows = [("primary key", _listed(primary), "")] if primary else []
    for column, other, target in connection.execute(
        'SELECT "from", "table", "to" FROM pragma_foreign_key_list(?) ORDER BY "from"', (name,)
    ).fetchall():
        rows.append(("foreign key", f"`{column}`", f"to `{target}` of `{other}`"))
    for index, unique, origin, sql in connection.execute(
        'SELECT list.name, list."unique", list.origin, sql FROM pragma_index_list(?) AS list'
        " LEFT JOIN sqlite_schema USING (name) WHERE origin <> 'pk' ORDER BY origin DESC, list.name",
        (name,),
    ).fetchall():
        columns = connection.execute(
            "SELECT name FROM pragma_index_info(?) ORDER BY seqno", (index,)
        ).fetchall()
        condition = " ".join((sql or "").partition(" WHERE ")[2].split())
        kind = "unique" if origin == "u" else f"{'unique ' if unique else ''}index `{index}`"
        rows.append((kind, _listed(columns), f"where `{condition}`" if condition else ""))
    return table(("key or index", "columns", ""), rows) if rows else ""


def _listed(columns: Iterable[tuple[str]]) -> str:
    return ", ".join(f"`{column}`" for (column,) in columns)
