"""Copies SQLite files while they are used, and puts copies in place.

Source: sqlite.org/backup.html, sqlite.org/isolation.html (a read transaction sees one state of a write-ahead log).
"""

import errno
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from solstice_cli.backup.archive import BLOCK
from solstice_cli.backup.errors import FileDamaged
from solstice_common.cli.running_up import is_locked
from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.private_paths import OWNER_ONLY, make_private_directory

BUSY_SECONDS: Final = 30.0
PAGES: Final = 2048
"""Pages between two reports."""
BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""The files of a database: a log of another file would be written into a restored one."""

Report = Callable[[int, int], None]
"""Called with what is done, and with all there is."""


@contextmanager
def writes_held(paths: Sequence[Path]) -> Iterator[None]:
    """Hold the write locks of all these files: no other process commits meanwhile."""
    with ExitStack() as stack:
        for path in paths:
            lock = stack.enter_context(_opened(path, "rw"))
            with _named(path):
                lock.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that sees the file as it is now, without later writes."""
    with _opened(path, "ro") as connection:
        with _named(path):
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield connection


@contextmanager
def copied(reader: sqlite3.Connection, path: Path, folder: Path, report: Report) -> Iterator[BinaryIO]:
    """Copy what `reader` sees into a nameless file of that folder.

    A process that is killed leaves nothing of it.
    """
    with _named(path):
        _refuse_damage(reader, path)
    descriptor, name = tempfile.mkstemp(prefix=".solstice-backup-", dir=folder)
    with os.fdopen(descriptor, "rb") as file, closing(sqlite3.connect(name, isolation_level=None)) as copy:
        try:
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
        finally:
            Path(name).unlink()
        with _named(path, folder):
            reader.backup(
                copy, pages=PAGES, progress=lambda _, left, pages: report(pages - left, pages), sleep=0
            )
        yield file


def staged_beside(target: Path) -> Path:
    """Return the name of the copy that is to be put in place."""
    return target.with_name(f"{target.name}.restoring")


def stage(target: Path, blocks: Iterator[bytes]) -> Path:
    """Write a copy beside its place, durable, whole and sound; an older one is replaced."""
    make_private_directory(target.parent)
    staged = unstage(target)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        if os.geteuid() == 0:
            # For the service, whose user has the folder.
            folder = target.parent.stat()
            os.fchown(file.fileno(), folder.st_uid, folder.st_gid)
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    with immutable(staged) as copy:
        _refuse_damage(copy, staged)
    return staged


def unstage(target: Path) -> Path:
    """Remove a copy that is not to be put in place; return its name."""
    staged = staged_beside(target)
    for each in leftovers(staged):
        each.unlink()
    return staged


def put_in_place(staged: Path, target: Path) -> None:
    """Give the copy its name. FileExistsError when another process has made a file there."""
    # A link never replaces a file, as renaming would.
    os.link(staged, target)
    staged.unlink()
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def leftovers(target: Path) -> Sequence[Path]:
    """Return the files that stand in the way of a copy."""
    return [each for end in BESIDE if (each := target.with_name(target.name + end)).exists()]


def holds(target: Path, sha256: str) -> bool:
    """Whether the file is the copy with that digest, and was not opened since."""
    if leftovers(target) != [target]:
        return False
    digest = hashlib.sha256()
    with target.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == sha256


def user_of(target: Path) -> str | None:
    """Return a lock or FIFO that shows a process which uses the database."""
    for end in (".relay", ".reporter"):
        if is_locked(lock := target.with_name(target.name + end)):
            return str(lock)
    owners = target.with_name(f"{target.name}.owners")
    with suppress(OSError):
        for lock in owners.iterdir():
            if lock.suffix == ".lock" and is_locked(lock):
                return str(lock)
    for end in (".notify", ".changes", ".schedule-changes"):
        with suppress(OSError):
            for fifo in target.with_name(target.name + end).iterdir():
                if fifo.suffix == ".fifo" and _has_reader(fifo):
                    return str(fifo)
    return None


@contextmanager
def immutable(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that no process uses, without making any beside it."""
    with _named(path), closing(sqlite3.connect(_uri(path, "ro", "&immutable=1"), uri=True)) as connection:
        yield connection


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file to change it in one transaction.

    Without other users, it is one whole file afterwards.
    """
    with _opened(path, "rw") as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
        # Everything in the file itself: closing removes the empty log.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with (
        _named(path),
        closing(
            sqlite3.connect(
                _uri(path, mode),
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        ) as connection,
    ):
        yield connection


def _uri(path: Path, mode: str, more: str = "") -> str:
    return f"{path.absolute().as_uri()}?mode={mode}{more}"


@contextmanager
def _named(path: Path, written: Path | None = None) -> Iterator[None]:
    """Raise errors of SQLite as ours; a full disk is that of `written`."""
    try:
        yield
    except sqlite3.Error as error:
        if written is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(written)) from error
        raise StoreUnavailable(str(path), str(error)) from error


def _refuse_damage(connection: sqlite3.Connection, path: Path) -> None:
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise FileDamaged(f"the database {path} is damaged ({problem}): restore an older backup of it")


def _has_reader(fifo: Path) -> bool:
    """Whether a process listens there; a killed one leaves a FIFO without a reader."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
