"""Moves everything from a SQLite store into an empty PostgreSQL one, or nothing.

The whole move is one transaction of PostgreSQL, and meanwhile no process can write to the source: an interruption
leaves the source as it was and the target empty, and the move can start again. The source stays as it is.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from solstice_common.errors import SolsticeError, StoreUnavailable
from solstice_common.settings import without_password
from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate as migrate_postgresql
from solstice_common.storage.schema_state import refuse_missing

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

BATCH_ROWS: Final = 500
"""A batch of log chunks has at most 32 MiB."""
SEEN_SECONDS: Final = 120.0
"""An orchestrator that was seen within this time may be alive: twice a lease."""
BUSY_SECONDS: Final = 10.0
NOT_MOVED: Final = frozenset({"schema_migrations", "outbox_lease"})
"""Tables about the database itself, not about what it keeps."""
SOURCES: Final[Mapping[str, str]] = {
    "requests": "requests JOIN runs USING (age)",
    "log_chunks": "log_chunks LEFT JOIN log_marks USING (job_id, attempt, sequence)",
}
"""The source of a table's columns where SQLite divides the tables in another way."""

Progress = Callable[[str, int, int], None]
"""Called with a table, the number of its moved rows, and their total."""
Convert = Callable[[Any], Any]


class MoveRefused(SolsticeError):
    """The move was refused; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """How many rows were moved to PostgreSQL."""

    rows: Mapping[str, int]
    """Per table; counted and equal on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    name: str
    columns: Mapping[str, Convert]

    @property
    def source(self) -> str:
        return SOURCES.get(self.name, self.name)


async def move(
    source: Path,
    target: str,
    *,
    in_use: bool = False,
    progress: Progress = lambda *_: None,
    clock: Callable[[], float] = time.time,
) -> MoveResult:
    """Move all rows of the file `source` into the database at the URL `target`.

    Both schemas are migrated first. Raises MoveRefused when an orchestrator may be using the source (unless `in_use`
    says that this is known), or when the target is not empty. Raises StoreUnavailable, SchemaTooNew,
    ConfigurationError.
    """
    refuse_missing(source)
    async with connected(target) as connection:
        where = without_password(target)
        await migrate_postgresql(
            connection, where, migrations_of("solstice_orchestrator.store.schema.postgresql")
        )
        with _locked_source(source) as source_file:
            if not in_use and (worker := _live_worker(source_file, clock() - SEEN_SECONDS)):
                raise MoveRefused(
                    f"worker {worker} was at work on {source} less than {SEEN_SECONDS:.0f} s ago: "
                    "end every orchestrator on it first"
                )
            # Reading a batch of logs may take longer than a transaction may usually stay idle.
            await connection.execute("SET idle_in_transaction_session_timeout = 0")
            async with connection.transaction():
                tables = await _tables(connection)
                await _claim_empty(connection, where, tables)
                rows = {table.name: await _copy(source_file, connection, table, progress) for table in tables}
                await _go_on_counting(connection)
                await _compare(source_file, connection, tables, rows)
    return MoveResult(rows=rows)


@contextmanager
def _locked_source(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file at its newest schema, and hold its one write lock."""
    try:
        with closing(
            sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        ) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            migrate(connection, path, migrations_of("solstice_orchestrator.store.schema.sqlite"))
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StoreUnavailable(str(path), str(error)) from error


def _live_worker(connection: sqlite3.Connection, since: float) -> str | None:
    """Return a worker with a heartbeat after `since` that did not leave."""
    row = connection.execute(
        "SELECT worker_id FROM workers WHERE seen_at > ? AND ended_at IS NULL ORDER BY seen_at DESC LIMIT 1",
        (since,),
    ).fetchone()
    return None if row is None else str(row[0])


async def _tables(connection: "Connection") -> Sequence[_Table]:
    """Return every table of the target, with the conversion for each column."""
    rows = await connection.fetch(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND is_generated = 'NEVER'"
        " ORDER BY table_name, ordinal_position"
    )
    names = dict.fromkeys(row["table_name"] for row in rows)
    return [
        _Table(
            name=name,
            columns={
                row["column_name"]: _CONVERT.get(row["data_type"], _as_it_is)
                for row in rows
                if row["table_name"] == name
            },
        )
        for name in names
        if name not in NOT_MOVED
    ]


async def _claim_empty(connection: "Connection", where: str, tables: Sequence[_Table]) -> None:
    for table in tables:
        # Other connections cannot insert anything meanwhile.
        await connection.execute(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE")
        if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {table.name})"):  # noqa: S608  names from the schema
            raise MoveRefused(
                f"the database {where} is not empty (there is something in {table.name}): "
                "move into a new database that no orchestrator has been started on"
            )


async def _copy(
    source_file: sqlite3.Connection, connection: "Connection", table: _Table, progress: Progress
) -> int:
    total = _count(source_file, table)
    columns = ", ".join(table.columns)
    convert = list(table.columns.values())
    with closing(source_file.execute(f"SELECT {columns} FROM {table.source}")) as rows:  # noqa: S608  names from the schema
        done = 0
        while batch := await asyncio.to_thread(rows.fetchmany, BATCH_ROWS):
            await connection.copy_records_to_table(
                table.name,
                columns=list(table.columns),
                records=[
                    [change(value) for change, value in zip(convert, row, strict=True)] for row in batch
                ],
            )
            done += len(batch)
            progress(table.name, done, total)
    return done


def _count(source_file: sqlite3.Connection, table: _Table) -> int:
    return int(source_file.execute(f"SELECT count(*) FROM {table.source}").fetchone()[0])  # noqa: S608  names from the schema


async def _go_on_counting(connection: "Connection") -> None:
    """Set the counters of tables that number their rows, after the moved rows."""
    for row in await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND is_identity = 'YES'"
    ):
        table, column = row["table_name"], row["column_name"]
        await connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}"  # noqa: S608  names from the schema
            " HAVING count(*) > 0"
        )


async def _compare(
    source_file: sqlite3.Connection,
    connection: "Connection",
    tables: Sequence[_Table],
    rows: Mapping[str, int],
) -> None:
    """Count the moved rows; a difference rolls everything back."""
    for table in tables:
        there = await connection.fetchval(f"SELECT count(*) FROM {table.name}")  # noqa: S608  names from the schema
        here = _count(source_file, table)
        if not here == rows[table.name] == there:
            raise MoveRefused(f"of {here} rows for {table.name}, {there} arrived; nothing was moved")


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    # PostgreSQL allows no NUL in a text; a job may have used one in a name.
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _real(value: Any) -> Any:
    return None if value is None else float(value)


def _truth(value: Any) -> Any:
    return None if value is None else bool(value)


_CONVERT: Final[Mapping[str, Convert]] = {"text": _text, "double precision": _real, "boolean": _truth}
