"""Restores a backup: every database appears whole, or not at all."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from solstice_cli.backup import sqlite_files
from solstice_cli.backup.archive import ArchiveReader
from solstice_cli.backup.errors import RestoreRefused
from solstice_cli.backup.manifest import ArchiveMember, BackupManifest, DatabaseCopy
from solstice_cli.backup.parts import SETTINGS, DatabaseName, PartDatabase
from solstice_cli.backup.unknown_requests import mark_in_file, mark_in_living, mark_in_server
from solstice_common.storage.migrations import missing

Progress = Callable[[str, int, int | None], None]
"""Called with what is done, how much of it, and all of it where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What a restore did."""

    manifest: BackupManifest
    restored: Mapping[DatabaseName, PartDatabase]
    """The databases, each with its place."""
    already: frozenset[DatabaseName]
    """Those that an interrupted restore of this backup had put in place before."""
    republished: int
    """Requests that the relay publishes once more, since the restored store does not know them."""


async def restore_backup(
    path: Path,
    targets: Sequence[PartDatabase],
    *,
    living_inbox: PartDatabase | None = None,
    republish_seconds: float,
    progress: Progress = lambda *_: None,
) -> RestoreResult:
    """Put the copies of a backup into files and databases that are not there yet.

    The inbox is `living_inbox` where a store is restored without one. Requests of the inbox that arrived up to
    `republish_seconds` before the backup, or later, and that the restored store does not know, are marked as unpublished.
    Raises RestoreRefused, BackupDamaged, SchemaTooNew, ConfigurationError, StoreUnavailable, OSError.
    """
    with ArchiveReader.open(path) as archive:
        copies = {copy.name: copy for copy in archive.manifest.databases}
        chosen = {each.name: each for each in targets if each.name in copies}
        _refuse_unusable(path, copies, chosen, targets)
        work = _Restore(
            archive=archive,
            copies=copies,
            targets=chosen,
            since=archive.manifest.created_at - republish_seconds,
            progress=progress,
        )
        await asyncio.to_thread(work.verify)
        await work.examine_targets()
        with work.staged():
            await asyncio.to_thread(work.stage)
            republished = sum([await work.finish(name) for name in DatabaseName if name in work.to_do])
        if living_inbox is not None and DatabaseName.STORE in chosen and DatabaseName.INBOX not in chosen:
            republished += await mark_in_living(living_inbox, chosen[DatabaseName.STORE], work.since)
    return RestoreResult(
        manifest=archive.manifest,
        restored=chosen,
        already=frozenset(work.already),
        republished=republished,
    )


def _refuse_unusable(
    path: Path,
    copies: Mapping[DatabaseName, DatabaseCopy],
    chosen: Mapping[DatabaseName, PartDatabase],
    targets: Sequence[PartDatabase],
) -> None:
    if not chosen:
        has = ", ".join(copies)
        raise RestoreRefused(f"{path} has nothing of {', '.join(each.name for each in targets)}, but {has}")
    for name, target in chosen.items():
        copy = copies[name]
        if copy.kind != target.kind:
            more = (
                " 'solstice store move' takes a restored store to PostgreSQL."
                if copy.kind == "sqlite" and name is DatabaseName.STORE
                else ""
            )
            raise RestoreRefused(
                f"{path} has the {name} of a {copy.kind} database, and {SETTINGS[name]} names {target.where}: "
                f"restore it into a database of the same kind.{more}"
            )
        missing(f"of the {name} in {path}", copy.migrations, target.migrations)


@dataclass(slots=True, kw_only=True)
class _Restore:
    """A restore at work."""

    archive: ArchiveReader
    copies: Mapping[DatabaseName, DatabaseCopy]
    targets: Mapping[DatabaseName, PartDatabase]
    since: float
    progress: Progress
    already: set[DatabaseName] = field(default_factory=set)

    @property
    def to_do(self) -> Sequence[DatabaseName]:
        return [name for name in DatabaseName if name in self.targets and name not in self.already]

    def verify(self) -> None:
        """Read the whole backup before anything is written."""
        size, done = sum(copy.size for copy in self.copies.values()), 0

        def report(read: int) -> None:
            nonlocal done
            done += read
            self.progress("verifying", done, size)

        self.archive.verify(report)

    async def examine_targets(self) -> None:
        """Find out what is in place already; RestoreRefused for anything else that stands there."""
        for target in self.targets.values():
            if not target.is_server and (user := sqlite_files.user_of(target.path)):
                raise RestoreRefused(
                    f"a process uses the {target.name} {target.path} ({user}): stop every service and command on it"
                )
        for name, target in self.targets.items():
            is_there = (
                await self._is_server_restored(target) if target.is_server else self._is_file_restored(target)
            )
            if is_there:
                self.already.add(name)

    def _is_file_restored(self, target: PartDatabase) -> bool:
        found = sqlite_files.leftovers(target.path)
        if found and not sqlite_files.holds(target.path, self.copies[target.name].members[0].sha256):
            raise RestoreRefused(
                f"{', '.join(map(str, found))} exists: a restore replaces nothing; stop the services and move it away"
            )
        return bool(found)

    async def _is_server_restored(self, target: PartDatabase) -> bool:
        from solstice_cli.backup import postgresql_tables as tables  # noqa: PLC0415  files need no client library

        async with tables.session(target.url) as connection:
            return await tables.is_restored(
                connection, target.where, self.copies[target.name], self.archive.manifest.backup_id
            )

    @contextmanager
    def staged(self) -> Iterator[None]:
        """Remove what was not put in place at the end."""
        try:
            yield
        finally:
            for target in self.targets.values():
                if not target.is_server:
                    sqlite_files.unstage(target.path)

    def stage(self) -> None:
        """Write every file beside its place: the disk is full now, or not any more."""
        for name in self.to_do:
            if not self.targets[name].is_server:
                sqlite_files.stage(self.targets[name].path, self._blocks(name)(self.copies[name].members[0]))

    async def finish(self, name: DatabaseName) -> int:
        """Put one database in place; return how many requests were marked."""
        if self.targets[name].is_server:
            return await self._fill_server(name)
        target, marked = self.targets[name].path, 0
        staged = sqlite_files.staged_beside(target)
        if name is DatabaseName.INBOX and (store := self.targets.get(DatabaseName.STORE)):
            marked = await mark_in_file(staged, store, self.since)
        sqlite_files.put_in_place(staged, target)
        return marked

    async def _fill_server(self, name: DatabaseName) -> int:
        from solstice_cli.backup import postgresql_tables as tables  # noqa: PLC0415  as above

        target, marked = self.targets[name], 0
        async with tables.session(target.url) as connection, connection.transaction():
            await tables.copy_in(
                connection,
                target.where,
                self.copies[name],
                target.migrations,
                applied=target.applied_table,
                backup_id=self.archive.manifest.backup_id,
                blocks=self._blocks(name),
            )
            if name is DatabaseName.INBOX and (store := self.targets.get(DatabaseName.STORE)):
                marked = await mark_in_server(connection, store, self.since)
        return marked

    def _blocks(self, name: DatabaseName) -> Callable[[ArchiveMember], Iterator[bytes]]:
        """Return what reads the members of a copy, and reports how far it is."""
        done, size = 0, self.copies[name].size

        def blocks(member: ArchiveMember) -> Iterator[bytes]:
            nonlocal done
            for block in self.archive.blocks(member):
                yield block
                done += len(block)
                self.progress(name, done, size)

        return blocks
