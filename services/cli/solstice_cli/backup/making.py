"""Makes a backup: one moment of all databases, in one file."""

import asyncio
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import TYPE_CHECKING, BinaryIO, Final

from solstice_cli.backup import sqlite_files
from solstice_cli.backup.archive import BLOCK, ArchiveWriter
from solstice_cli.backup.manifest import ArchiveMember, BackupManifest, DatabaseCopy
from solstice_cli.backup.parts import SETTINGS, DatabaseName, PartDatabase
from solstice_common import __version__
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.private_paths import OWNER_ONLY
from solstice_common.storage.migrations import applied_to, missing

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

Progress = Callable[[str, int, int | None], None]
"""Called with what is copied, what of it is done, and all of it where that is known."""
_OPTIONAL: Final = frozenset({DatabaseName.STATUSES})
"""A forge-integration that calls no forge has no statuses."""


@dataclass(frozen=True, slots=True)
class _Snapshots:
    """All databases at one moment."""

    at: float
    files: Mapping[DatabaseName, SqliteConnection]
    servers: Mapping[DatabaseName, "Connection"]


async def make_backup(
    path: Path,
    databases: Sequence[PartDatabase],
    *,
    left_out: Sequence[str] = (),
    progress: Progress = lambda *_: None,
) -> BackupManifest:
    """Copy the databases into the new file `path`, which appears whole or not at all.

    Raises ConfigurationError, StoreUnavailable, SchemaTooNew, FileDamaged, OSError.
    """
    _refuse_existing(path)
    there = [each for each in databases if _is_there(each)]
    async with AsyncExitStack() as stack:
        snapshots = await _snapshots(stack, there)
        with _new_file(path) as archive:
            copies = [
                copy for each in there if (copy := await _copy(archive, path, snapshots, each, progress))
            ]
            manifest = BackupManifest(
                backup_id=str(uuid.uuid4()),
                solstice_version=__version__,
                created_at=snapshots.at,
                left_out=tuple(left_out),
                databases=tuple(copies),
            )
            archive.finish(manifest)
    return manifest


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigurationError(f"{path} exists: a backup never replaces a file; choose another name")
    if not path.name or not path.parent.is_dir():
        raise ConfigurationError(f"{path}: there is no such folder to write a file into")


def _is_there(database: PartDatabase) -> bool:
    if database.is_server or database.path.is_file():
        return True
    if database.name in _OPTIONAL:
        return False
    raise ConfigurationError(
        f"the {database.name} {database.where}: there is no such file; name its database "
        f"({SETTINGS[database.name]}), or choose what to back up (--only)"
    )


@contextmanager
def _new_file(path: Path) -> Iterator[ArchiveWriter]:
    """Write a private file that appears under its name once it is whole and durable.

    A process that is killed leaves `FILE.part`, which the next backup into that file replaces.
    """
    part = path.with_name(f"{path.name}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, OWNER_ONLY), "r+b") as file:
        _lock(file, part)
        try:
            os.fchmod(file.fileno(), OWNER_ONLY)
            file.truncate(0)
            with ArchiveWriter.open(file) as archive:
                yield archive
            file.flush()
            os.fsync(file.fileno())
            sqlite_files.put_in_place(part, path)
        finally:
            part.unlink(missing_ok=True)


def _lock(file: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_named = part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat())
    except BlockingIOError:
        is_named = False
    if not is_named:
        raise ConfigurationError(
            f"another backup is writing {part}: wait for its end, or choose another name"
        )


async def _snapshots(stack: AsyncExitStack, databases: Sequence[PartDatabase]) -> _Snapshots:
    """Take a snapshot of each database while writers of SQLite files wait.

    What goes from one file to another is then in one of the two copies. Where a server is among them, the database from
    which requests come is looked at first: what is on its way is in both copies rather than in none.
    """
    files = [each for each in databases if not each.is_server]
    # The inbox before the store.
    urls = dict.fromkeys(
        each.url
        for each in sorted(databases, key=lambda each: each.name is DatabaseName.STORE)
        if each.is_server
    )
    sessions = {url: await _session(stack, url) for url in urls}
    with sqlite_files.writes_held([each.path for each in files]):
        at = time.time()
        readers = {each.name: stack.enter_context(sqlite_files.snapshot(each.path)) for each in files}
        for session in sessions.values():
            await stack.enter_async_context(session.transaction(isolation="repeatable_read", readonly=True))
            await session.fetchval("SELECT 1")  # the first statement takes the snapshot
    return _Snapshots(
        at=at,
        files=readers,
        servers={each.name: sessions[each.url] for each in databases if each.is_server},
    )


async def _session(stack: AsyncExitStack, url: str) -> "Connection":
    from solstice_cli.backup.postgresql_tables import session  # noqa: PLC0415  files need no client library

    return await stack.enter_async_context(session(url))


async def _copy(
    archive: ArchiveWriter, path: Path, snapshots: _Snapshots, database: PartDatabase, progress: Progress
) -> DatabaseCopy | None:
    if database.is_server:
        return await _copy_server(archive, snapshots.servers[database.name], database, progress)
    reader = snapshots.files[database.name]
    return await asyncio.to_thread(_copy_file, archive, reader, database, path, progress)


def _copy_file(
    archive: ArchiveWriter, reader: SqliteConnection, database: PartDatabase, path: Path, progress: Progress
) -> DatabaseCopy | None:
    applied = applied_to(reader)
    if not _has_schema(database, applied):
        return None
    name = f"{database.name}.sqlite3"

    def report(done: int, total: int) -> None:
        progress(database.name, done, total)

    with (
        sqlite_files.copied(reader, database.path, path.parent, report) as copy,
        archive.member(name) as member,
    ):
        shutil.copyfileobj(copy, member, BLOCK)
    written = ArchiveMember(name=name, size=member.size, sha256=member.sha256)
    return _database_copy(database, applied, [written])


async def _copy_server(
    archive: ArchiveWriter, connection: "Connection", database: PartDatabase, progress: Progress
) -> DatabaseCopy | None:
    from solstice_cli.backup import postgresql_tables as tables  # noqa: PLC0415  as above
    from solstice_common.storage.postgresql_schema import applied_to as applied_to_server  # noqa: PLC0415

    applied = await applied_to_server(connection, database.applied_table)
    if not _has_schema(database, applied):
        return None
    had = [each for each in database.migrations if each.version in applied]
    names = await tables.tables_of(connection, had)
    members = []
    for done, table in enumerate(names):
        progress(database.name, done, len(names))
        columns = await tables.columns_of(connection, table)
        with archive.member(f"{database.name}/{table}.copy") as member:
            rows = await tables.copy_out(connection, table, columns, member)
        members.append(
            ArchiveMember(
                name=f"{database.name}/{table}.copy",
                size=member.size,
                sha256=member.sha256,
                table=table,
                columns=tuple(columns),
                rows=rows,
            )
        )
    progress(database.name, len(names), len(names))
    copy = _database_copy(database, applied, members)
    return copy.model_copy(update={"sequences": await tables.sequences_of(connection, names, had)})


def _has_schema(database: PartDatabase, applied: Mapping[int, str]) -> bool:
    """Whether there is anything to copy; refuses a schema that this version could not restore."""
    missing(database.where, applied, database.migrations)
    if applied or database.name in _OPTIONAL:
        return bool(applied)
    raise ConfigurationError(
        f"the {database.name} {database.where} has no tables: is this the right database "
        f"({SETTINGS[database.name]})?"
    )


def _database_copy(
    database: PartDatabase, applied: Mapping[int, str], members: Sequence[ArchiveMember]
) -> DatabaseCopy:
    return DatabaseCopy(
        name=database.name,
        kind="postgresql" if database.is_server else "sqlite",
        where=database.where,
        migrations=dict(applied),
        members=tuple(members),
    )
