"""Backups are of one moment, and restores bring them back whole or not at all."""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from solstice_cli.backup.archive import ArchiveReader
from solstice_cli.backup.errors import BackupDamaged, FileDamaged, RestoreRefused
from solstice_cli.backup.making import make_backup
from solstice_cli.backup.parts import BackupPart, DatabaseName
from solstice_cli.backup.unknown_requests import mark_in_living
from solstice_cli.main import app
from solstice_common.errors import ConfigurationError, SchemaTooNew
from solstice_common.messages import derive_request_id
from solstice_forge.inbox import open_inbox
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.admin.check import check
from tests.builders import job_request
from tests.servers.postgresql import PostgreSQLServer, ScratchDatabase
from tests.servers.service_process import base_environment
from tests.set_ups import UNKNOWN, WAITING, SetUp, asking, back_up, fill, restored, seen, to_publish
from tests.stores import ManualClock

KILLED: Final = -9
SINCE: Final = derive_request_id("came since the backup")
OLD: Final = derive_request_id("is as old as can be")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path) -> SetUp:
    """A set-up on files, not filled yet."""
    return SetUp(folder=tmp_path / "before")


@pytest.fixture
async def filled(files: SetUp, clock: ManualClock) -> SetUp:
    await fill(files, clock)
    return files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.zip"


@pytest.fixture(params=["sqlite", "postgresql"])
def before_and_after(request: pytest.FixtureRequest, files: SetUp) -> Iterator[tuple[SetUp, SetUp]]:
    """A set-up to back up, and one to restore into."""
    if request.param == "sqlite":
        yield files, files.moved("after")
        return
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    with server.database() as first, server.database() as second:
        yield SetUp(folder=files.folder, server=first.url), files.moved("after", second.url)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def cut(path: Path, share: float) -> None:
    with path.open("r+b") as opened:
        opened.truncate(int(path.stat().st_size * share))


def changed(path: Path) -> Iterator[None]:
    """Change another byte of a member at a time."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        places = [
            # The content stands behind a head of 30 bytes, the name, and 20 bytes for large sizes.
            each.header_offset + 50 + len(each.filename) + each.compress_size * share // 4
            for each in archive.infolist()
            for share in (1, 2)
        ]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        yield


async def test_what_was_backed_up_is_seen_again_and_work_goes_on(
    before_and_after: tuple[SetUp, SetUp], clock: ManualClock, file: Path
) -> None:
    before, after = before_and_after
    await fill(before, clock)
    manifest = await back_up(before, file)
    assert [copy.name for copy in manifest.databases] == list(DatabaseName)
    assert mode_of(file) == 0o600
    result = await restored(after, file)
    assert (set(result.restored), result.already, result.republished) == (set(DatabaseName), frozenset(), 1)
    assert await to_publish(after) == {UNKNOWN, WAITING}
    assert (await check(after.settings.database_url)).well
    assert await seen(after, clock) == await seen(before, clock)
    async with open_store(after.settings.database_url, clock=clock) as store:
        await store.admit([job_request()])  # numbers of rows go on after the restored ones
    async with open_inbox(after.settings.forge_inbox_url) as inbox:
        await inbox.keep(asking(SINCE))
    for path in after.folder.iterdir():
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


async def test_files_are_copied_as_of_one_moment_while_they_are_written(filled: SetUp, file: Path) -> None:
    """Each order is first in the inbox, and then in the store."""
    ended = threading.Event()

    def write() -> None:
        with (
            closing(sqlite3.connect(filled.folder / "inbox.db", timeout=60, isolation_level=None)) as inbox,
            closing(sqlite3.connect(filled.folder / "store.db", timeout=60, isolation_level=None)) as store,
        ):
            number = 0
            while not ended.is_set():
                number += 1
                inbox.execute("UPDATE sweep_cursor SET stripped_to = ?", (number,))
                store.execute("UPDATE outbox_lease SET until = ?", (number,))

    def numbers(folder: Path) -> tuple[int, int]:
        with (
            closing(sqlite3.connect(folder / "inbox.db")) as inbox,
            closing(sqlite3.connect(folder / "store.db")) as store,
        ):
            return (
                inbox.execute("SELECT stripped_to FROM sweep_cursor").fetchone()[0],
                int(store.execute("SELECT until FROM outbox_lease").fetchone()[0]),
            )

    with closing(sqlite3.connect(filled.folder / "store.db")) as store:
        store.execute("INSERT OR REPLACE INTO outbox_lease VALUES (1, '', 0)")
        store.commit()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            copy = file.with_name(f"{number}.zip")
            await back_up(filled, copy)
            await restored(filled.moved(f"after {number}"), copy)
    finally:
        ended.set()
        writer.join()
    for number in range(5):
        first, second = numbers(filled.moved(f"after {number}").folder)
        assert first - second in {0, 1}, (first, second)
    assert numbers(filled.moved("after 4").folder) > numbers(filled.moved("after 0").folder)


class TestDamage:
    @pytest.fixture
    async def backup(self, filled: SetUp, file: Path) -> Path:
        await back_up(filled, file)
        return file

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
    async def test_a_cut_file_is_refused(self, filled: SetUp, backup: Path, share: float) -> None:
        cut(backup, share)
        await self._refused(filled, backup)

    async def test_a_file_with_another_byte_in_any_member_is_refused(
        self, filled: SetUp, backup: Path
    ) -> None:
        for _ in changed(backup):
            await self._refused(filled, backup)

    async def test_a_member_that_was_replaced_in_the_archive_is_refused(
        self, filled: SetUp, backup: Path
    ) -> None:
        changed = backup.with_name("changed.zip")
        with zipfile.ZipFile(backup) as one, zipfile.ZipFile(changed, "w") as other:
            for name in one.namelist():
                content = one.read(name)
                other.writestr(name, content[:-1] + b"!" if name == "inbox.sqlite3" else content)
        with pytest.raises(BackupDamaged, match=r"inbox.sqlite3 is not what its manifest says"):
            await restored(filled.moved("after"), changed)
        changed.unlink()
        with zipfile.ZipFile(changed, "w") as other:
            other.writestr("manifest.json", '{"format": 2}')
        with pytest.raises(BackupDamaged, match="cannot read its manifest"):
            await restored(filled.moved("after"), changed)

    @pytest.mark.parametrize(
        "error", [KeyError("column"), RuntimeError("of the database"), EOFError("of another")]
    )
    async def test_an_error_of_the_code_that_restores_is_not_called_damage(
        self, backup: Path, error: Exception
    ) -> None:
        def restore() -> None:
            with ArchiveReader.open(backup) as archive:
                for _ in archive.blocks(archive.manifest.databases[0].members[0]):
                    raise error

        with pytest.raises(type(error)) as raised:
            restore()
        assert raised.value is error

    async def _refused(self, filled: SetUp, backup: Path) -> None:
        after = filled.moved("after")
        with pytest.raises(BackupDamaged, match="no whole backup"):
            await restored(after, backup)
        assert not after.folder.exists()

    async def test_a_damaged_database_is_not_backed_up(self, filled: SetUp, file: Path) -> None:
        for path in (filled.folder / "store.db",):
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
            with path.open("r+b") as opened:
                opened.seek((root[0] - 1) * 4096)
                opened.write(b"\xff" * 512)
        with pytest.raises(FileDamaged, match="is damaged"):
            await back_up(filled, file)
        assert [each.name for each in file.parent.iterdir()] == ["before"]


class TestRefusals:
    async def test_a_backup_replaces_no_file_and_names_what_is_missing(
        self, filled: SetUp, file: Path, tmp_path: Path
    ) -> None:
        (tmp_path / file.name).touch()
        with pytest.raises(ConfigurationError, match="never replaces a file"):
            await back_up(filled, file)
        (tmp_path / file.name).unlink()
        (filled.folder / "store.db").unlink()
        with pytest.raises(ConfigurationError, match=r"store.*no such file.*DATABASE_URL.*--only"):
            await back_up(filled, file)
        (filled.folder / "store.db").touch()
        with pytest.raises(ConfigurationError, match="has no tables"):
            await back_up(filled, file)
        with pytest.raises(ConfigurationError, match="no such folder"):
            await back_up(filled, tmp_path / "none" / "file")
        assert not (tmp_path / file.name).exists()

    @pytest.mark.parametrize("name", ["store.db", "inbox.db-wal", "broker.sqlite-journal"])
    async def test_a_restore_replaces_no_file(self, filled: SetUp, file: Path, name: str) -> None:
        await back_up(filled, file)
        after = filled.moved("after")
        after.folder.mkdir()
        (after.folder / name).write_bytes(b"of an older database")
        with pytest.raises(RestoreRefused, match=f"{name} exists"):
            await restored(after, file)
        assert [each.name for each in after.folder.iterdir()] == [name]

    async def test_a_database_in_use_is_refused_although_its_file_is_gone(
        self, filled: SetUp, file: Path
    ) -> None:
        await back_up(filled, file)
        async with open_inbox(filled.settings.forge_inbox_url) as inbox, inbox.relaying():
            (filled.folder / "inbox.db").unlink()
            with pytest.raises(RestoreRefused, match=r"a process uses the inbox .*\.relay"):
                await restored(filled, file, BackupPart.INBOX)
        async with open_store(filled.settings.database_url) as store, store.changes():
            (filled.folder / "store.db").unlink()
            with pytest.raises(RestoreRefused, match=r"a process uses the store .*\.fifo"):
                await restored(filled, file, BackupPart.STORE)

    async def test_postgresql_with_tables_or_in_use_is_refused(
        self, filled: SetUp, file: Path, postgresql: PostgreSQLServer, clock: ManualClock
    ) -> None:
        with postgresql.database() as first, postgresql.database() as second:
            before, after = SetUp(folder=filled.folder, server=first.url), filled.moved("after", second.url)
            async with open_store(first.url):
                pass
            await back_up(before, file, BackupPart.STORE)
            async with open_store(second.url) as store:
                await store.counts()
                with pytest.raises(RestoreRefused, match=r"has \d+ other connections of Solstice CI"):
                    await restored(after, file, BackupPart.STORE)
            second.await_silence()
            with pytest.raises(RestoreRefused, match=r"has a store already .*createdb"):
                await restored(after, file, BackupPart.STORE)

    async def test_another_kind_of_database_is_refused_with_what_to_do(
        self, filled: SetUp, file: Path
    ) -> None:
        await back_up(filled, file)
        after = filled.moved("after", "postgresql://nowhere.example/ci")
        with pytest.raises(RestoreRefused, match=r"of the same kind.*'solstice store move'"):
            await restored(after, file, BackupPart.STORE)
        with pytest.raises(RestoreRefused, match="has nothing of store, but broker"):
            await restored_of(filled, file.with_name("broker.zip"))

    async def test_a_newer_schema_is_refused_by_backup_and_restore(
        self, filled: SetUp, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await back_up(filled, file)
        with closing(sqlite3.connect(filled.folder / "store.db", isolation_level=None)) as connection:
            connection.execute("INSERT INTO schema_migrations VALUES (9999, 'x', 0)")
        with pytest.raises(SchemaTooNew, match="9999"):
            await back_up(filled, file.with_name("newer.zip"))
        with monkeypatch.context() as patched:
            patched.setattr("solstice_cli.backup.making.missing", lambda *_: ())
            await back_up(filled, file.with_name("newer.zip"))
        with pytest.raises(SchemaTooNew, match="9999"):
            await restored(filled.moved("after"), file.with_name("newer.zip"))


async def restored_of(set_up: SetUp, file: Path) -> None:
    """Back up the broker alone, and ask for the store."""
    await back_up(set_up, file, BackupPart.BROKER)
    await restored(set_up.moved("after"), file, BackupPart.STORE)


CHILD: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from solstice_cli.backup import {module} as module
from tests.set_ups import SetUp, back_up, restored
real, left = module.{function}, int(sys.argv[1])
def dies(*arguments, **named):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(*arguments, **named)
module.{function} = dies
asyncio.run({work}(SetUp(folder=Path(sys.argv[2]), server=sys.argv[3]), Path(sys.argv[4])))
"""


def killed_in(module: str, function: str, calls: int, work: str, set_up: SetUp, file: Path) -> int:
    """The exit code of a process that kills itself after so many calls."""
    code = CHILD.format(module=module, function=function, work=work)
    words = [sys.executable, "-c", code, str(calls), str(set_up.folder), set_up.server, str(file)]
    return subprocess.run(words, env=base_environment(), check=False).returncode


class TestKills:
    @pytest.mark.parametrize("function", ["_refuse_damage", "put_in_place"])
    async def test_a_killed_backup_leaves_no_backup_and_the_next_is_whole(
        self, filled: SetUp, file: Path, function: str
    ) -> None:
        killed = await asyncio.to_thread(killed_in, "sqlite_files", function, 0, "back_up", filled, file)
        assert killed == KILLED
        assert {each.name for each in file.parent.iterdir()} <= {"before", "backup.zip.part"}
        await back_up(filled, file)
        assert sorted(each.name for each in file.parent.iterdir()) == ["backup.zip", "before"]
        await restored(filled.moved("after"), file)

    @pytest.mark.parametrize(
        ("function", "calls"),
        [
            ("_refuse_damage", 2),
            ("put_in_place", 1),
            ("put_in_place", 3),
            ("immutable", 4),
        ],
    )
    async def test_a_killed_restore_goes_on(
        self, filled: SetUp, file: Path, clock: ManualClock, function: str, calls: int
    ) -> None:
        await back_up(filled, file)
        after = filled.moved("after")
        after.folder.mkdir()
        killed = await asyncio.to_thread(killed_in, "sqlite_files", function, calls, "restored", after, file)
        assert killed == KILLED
        assert not (after.folder / "inbox.db").exists()  # what would be sent is the last to be there
        await restored(after, file)
        assert await to_publish(after) == {UNKNOWN, WAITING}
        assert await seen(after, clock) == await seen(filled, clock)
        assert not [each.name for each in after.folder.iterdir() if "restoring" in each.name]

    async def test_a_killed_restore_into_postgresql_goes_on(
        self, files: SetUp, file: Path, clock: ManualClock, postgresql: PostgreSQLServer
    ) -> None:
        with postgresql.database() as first, postgresql.database() as second:
            before, after = SetUp(folder=files.folder, server=first.url), files.moved("after", second.url)
            await fill(before, clock)
            await back_up(before, file)
            after.folder.mkdir()
            # In the store, and in the inbox when the store is there already.
            for calls in (5, 28):
                killed = await asyncio.to_thread(
                    killed_in, "postgresql_tables", "_asynchronous", calls, "restored", after, file
                )
                assert killed == KILLED, calls
                second.await_silence()
                there = second.query(
                    "SELECT to_regclass('runs') IS NULL, to_regclass('inbox_requests') IS NULL"
                )
                assert tuple(there[0]) == ((calls == 5), True)
            result = await restored(after, file)
            assert result.already == {DatabaseName.BROKER, DatabaseName.STORE, DatabaseName.STATUSES}
            assert await to_publish(after) == {UNKNOWN, WAITING}
            assert await seen(after, clock) == await seen(before, clock)

    async def test_two_backups_do_not_write_one_file(self, filled: SetUp, file: Path) -> None:
        done = await asyncio.gather(*(back_up(filled, file) for _ in range(2)), return_exceptions=True)
        refused = [each for each in done if isinstance(each, BaseException)]
        assert [type(each) for each in refused] in ([ConfigurationError], [FileExistsError])
        await restored(filled.moved("after"), file)


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "solstice-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="not asked for: only root can mount a small disk")
async def test_a_full_disk_leaves_nothing(
    filled: SetUp, file: Path, tmp_path: Path, clock: ManualClock
) -> None:
    size = sum(copy.size for copy in (await back_up(filled, file)).databases) // 1024
    with small_disk(tmp_path / "small", size // 4) as small:
        with pytest.raises(OSError, match="No space left"):
            await make_backup(small / "backup.zip", filled.databases())
        assert list(small.iterdir()) == []
    with small_disk(tmp_path / "after", size * 3 // 4):
        after = filled.moved("after")
        with pytest.raises(OSError, match="No space left"):
            await restored(after, file)
        assert list(after.folder.iterdir()) == []
        assert await seen(filled, clock)


async def test_a_store_alone_is_restored_beside_an_inbox_that_lives(
    filled: SetUp, file: Path, clock: ManualClock
) -> None:
    await back_up(filled, file)
    async with open_inbox(filled.settings.forge_inbox_url) as inbox, inbox.relaying():
        await inbox.keep(asking(SINCE))
        await inbox.published([each.row_id for each in await inbox.pending(9)])
        await inbox.keep(asking(OLD, received_at=time.time() - 10_000))
        for each in filled.folder.iterdir():
            if each.name.startswith("store.db") and each.is_file():
                each.unlink()
        living = filled.databases(BackupPart.INBOX)[-1]
        result = await restored(filled, file, BackupPart.STORE, living_inbox=living)
        assert result.republished == 3
        pending = {each.request_id for each in await inbox.pending(100)}
    assert pending == {UNKNOWN, WAITING, SINCE, OLD}


async def test_an_inbox_that_lives_in_postgresql_is_marked_once(
    files: SetUp, file: Path, clock: ManualClock, postgresql_database: ScratchDatabase
) -> None:
    set_up = SetUp(folder=files.folder, server=postgresql_database.url)
    await fill(set_up, clock)
    store = next(each for each in set_up.databases() if each.name is DatabaseName.STORE)
    inbox = set_up.databases(BackupPart.INBOX)[-1]
    marked = [await mark_in_living(inbox, store, time.time() - 3600) for _ in range(2)]
    assert marked == [1, 0]
    assert await to_publish(set_up) == {UNKNOWN, WAITING}


def invoke(*words: str | Path, **settings: str) -> str:
    done = CliRunner().invoke(app, [str(each) for each in words], env=settings)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_say_what_they_did(tmp_path: Path, file: Path, files: SetUp, clock: ManualClock) -> None:
    asyncio.run(fill(files, clock))
    urls = {
        "AMQP_URL": "amqp://ci:hunter2@broker.example",
        "DATABASE_URL": f"sqlite:///{files.folder}/store.db",
        "FORGE_INBOX_URL": f"sqlite:///{files.folder}/inbox.db",
    }
    shown = invoke("backup", file, **urls)
    assert re.search(r"^store {5}/.*store\.db, schema version \d+, \d+\.\d MiB$", shown, re.MULTILINE), shown
    assert "left out  the messages in amqp://ci@broker.example: back up the broker itself\n" in shown
    assert "hunter2" not in shown + str(zipfile.ZipFile(file).read("manifest.json"))
    after = {name: url.replace("before", "after") for name, url in urls.items()}
    shown = invoke("restore", file, **after)
    assert "1 request of the inbox, unknown to the store, will be published once more\n" in shown
    assert shown.endswith("now start the services\n")
    store = {**after, "DATABASE_URL": f"sqlite:///{tmp_path}/third/store.db"}
    document = invoke("restore", file, "--only", "store", "--json", **store)
    assert '"republished": 0' in document
    assert '"was_there": false' in document
