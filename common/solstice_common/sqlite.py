"""One SQLite file, written in groups: whatever was asked for while the last commit was under way is the next commit.

The embedded broker, the inbox and the job store all stand on this. A write is durable when its call returns
(WAL, `synchronous=FULL`); a group costs one fsync however many calls it holds. Several processes may share a file:
SQLite's own lock puts their groups one after the other.
"""

import asyncio
import contextlib
import hashlib
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

from solstice_common.errors import ConfigurationError, SchemaTooNew, StoreUnavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_SECONDS: Final = 10.0
MAX_GROUP: Final = 1024


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


@dataclass(slots=True)
class _Call:
    work: Work[Any]
    future: Future[Any] = field(default_factory=Future)


class Database:
    """Open with `Database.open`. `write` and `read` may be called from any task of the loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writes: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, migrations: Sequence[Migration] = ()) -> AsyncIterator["Database"]:
        """Open (and create) the file, bring its schema up to date, and serve calls until left.

        Leaving carries out what was already asked for. Raises StoreUnavailable, SchemaTooNew.
        """
        database = cls(path)
        await asyncio.to_thread(_prepare, path, migrations)
        threads = [
            threading.Thread(target=database._serve_writes, name=f"sqlite-write:{path.name}", daemon=True),
            threading.Thread(target=database._serve_reads, name=f"sqlite-read:{path.name}", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield database
        finally:
            database._writes.put(None)
            database._reads.put(None)
            for thread in threads:
                await asyncio.to_thread(thread.join)

    async def write(self, work: Work[T]) -> T:
        """Run `work` inside the next group's transaction; return what it returned once that is durable.

        An exception of `work` undoes only `work` and is raised here. StoreUnavailable: nothing was changed.
        A caller that is cancelled does not undo its work.
        """
        call = _Call(work)
        self._writes.put(call)
        result: T = await asyncio.wrap_future(call.future)
        return result

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a read-only connection, beside the writes; it sees whole groups only."""
        call = _Call(work)
        self._reads.put(call)
        result: T = await asyncio.wrap_future(call.future)
        return result

    def _serve_writes(self) -> None:
        with contextlib.closing(_connect(self.path)) as connection:
            while group := _next_group(self._writes):
                _commit_group(connection, self.path, group)

    def _serve_reads(self) -> None:
        with contextlib.closing(_connect(self.path)) as connection:
            connection.execute("PRAGMA query_only = ON")
            while group := _next_group(self._reads):
                for call in group:
                    if call.future.set_running_or_notify_cancel():
                        _serve_read(connection, self.path, call)


def _next_group(calls: "queue.SimpleQueue[_Call | None]") -> list[_Call]:
    """Wait for a call and take whatever else is there; an empty group means: no more will come."""
    group: list[_Call] = []
    call = calls.get()
    while call is not None:
        group.append(call)
        if len(group) == MAX_GROUP:
            return group
        try:
            call = calls.get_nowait()
        except queue.Empty:
            return group
    if group:
        calls.put(None)
    return group


def _commit_group(connection: sqlite3.Connection, path: Path, group: Sequence[_Call]) -> None:
    """One transaction for the group; each call's own failure is undone alone."""
    settled: list[tuple[_Call, Any, BaseException | None]] = []
    running = [call for call in group if call.future.set_running_or_notify_cancel()]
    try:
        connection.execute("BEGIN IMMEDIATE")
        for call in running:
            connection.execute("SAVEPOINT call")
            try:
                settled.append((call, call.work(connection), None))
            except sqlite3.OperationalError:
                raise  # disk full, I/O error: the whole group is undone
            except BaseException as error:  # noqa: BLE001  the caller gets it, whatever it is
                connection.execute("ROLLBACK TO call")
                settled.append((call, None, error))
            connection.execute("RELEASE call")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        for call in running:
            call.future.set_exception(StoreUnavailable(str(path), str(error)))
        return
    for call, result, failure in settled:
        if failure is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(failure)


def _read(connection: sqlite3.Connection, path: Path, work: Work[T]) -> T:
    try:
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(str(path), str(error)) from error


def _serve_read(connection: sqlite3.Connection, path: Path, call: _Call) -> None:
    try:
        result = _read(connection, path, call.work)
    except BaseException as error:  # noqa: BLE001  the caller gets it, whatever it is
        call.future.set_exception(error)
    else:
        call.future.set_result(result)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _prepare(path: Path, migrations: Sequence[Migration]) -> None:
    """Create the file and apply what is missing, in one transaction, also when several processes start at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(_connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                _migrate(connection, path, migrations)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(str(path), str(error)) from error


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
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
            for statement in _statements(migration.sql):
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


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would end the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
