"""Opens the connections to one SQLite database, and names its errors.

Source: sqlite.org/wal.html, sqlite.org/rescode.html.
"""

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from solstice_common.addresses.system_errors import system_words
from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.runtime.private_paths import OWNER_ONLY, make_private_directory
from solstice_common.storage.migrations import Migration, migrate
from solstice_common.storage.private_files import narrow
from solstice_common.storage.sqlite_place import MemoryPlace, SqlitePlace

CACHED_STATEMENTS: Final = 512
"""The cached statements: enough for every row count of a few kinds of insert."""
WAL_KEEP_BYTES: Final = 64 * 1024 * 1024
"""The size above which a checkpointed write-ahead log is truncated.

A log grows so far only during a long read.
"""

_CREATING: Final = threading.Lock()
_UNAVAILABLE: Final = frozenset({
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
})  # fmt: skip
"""Errors of the file or the machine.

Any other code is a mistake in our SQL and is raised as it is.
"""
_UNUSABLE_PATH: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
"""What the system says of a path where there can be no database, however often it is tried."""


def open_connections(
    place: SqlitePlace, migrations: Sequence[Migration], busy_seconds: float
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Create the database, migrate it in one transaction, and open two connections.

    They are a writer and a reader.
    """
    try:
        if isinstance(place, MemoryPlace):
            with place.transaction:
                return _open_both(place, migrations, busy_seconds)
        return _open_file(place, migrations, busy_seconds)
    except sqlite3.Error as error:
        raise named(place, error) from error


def _open_file(
    path: Path, migrations: Sequence[Migration], busy_seconds: float
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    try:
        make_private_directory(path.parent)
        _for_its_owner(path)
        return _open_both(path, migrations, busy_seconds)
    except OSError as error:
        raise unusable_file(path, error) from error


def _open_both(
    place: SqlitePlace, migrations: Sequence[Migration], busy_seconds: float
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    with contextlib.ExitStack() as opened:
        writer = opened.enter_context(contextlib.closing(_connect(place, busy_seconds)))
        if isinstance(place, Path):
            _use_wal(writer, busy_seconds)
        writer.execute("BEGIN IMMEDIATE")
        try:
            migrate(writer, place, migrations)
        except BaseException:
            writer.execute("ROLLBACK")
            raise
        writer.execute("COMMIT")
        reader = opened.enter_context(contextlib.closing(_connect(place, busy_seconds)))
        reader.execute("PRAGMA query_only = ON")
        opened.pop_all()
        return writer, reader


def unusable_file(path: Path, error: OSError) -> ConfigurationError | StoreUnavailable:
    """Return what callers know when the system refuses a database its files."""
    words = f"{error.filename} is no directory" if error.errno == errno.EEXIST else system_words(str(error))
    if error.errno in _UNUSABLE_PATH:
        return ConfigurationError(f"the database {path} cannot be used: {words}")
    return StoreUnavailable(str(path), words)


def named(place: SqlitePlace, error: BaseException) -> BaseException:
    """Convert an error of SQLite into our own."""
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNAVAILABLE:
        unavailable = StoreUnavailable(str(place), str(error))
        unavailable.__cause__ = error
        return unavailable
    if isinstance(error, StopIteration):
        return RuntimeError("the work raised StopIteration")  # a future cannot hold that exception
    return error


def _connect(place: SqlitePlace, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place.address if isinstance(place, MemoryPlace) else place,
        uri=isinstance(place, MemoryPlace),
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Keep a large insert's rollback data in memory: SQLite would write it to a file in /tmp.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEEP_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _for_its_owner(path: Path) -> None:
    """Make the file, and those beside it, 0600 under any umask.

    SQLite gives a WAL the mode of its file. A file of another user is left unchanged.
    """
    # Only a new file is opened here, and no other code of this process runs before it is closed: closing any
    # descriptor of a file drops all POSIX locks of the process on it, also those of SQLite's other
    # connections.
    with _CREATING, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))):
        narrow(each)


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Switch the file to a write-ahead log.

    SQLite itself does not wait for the lock here.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
