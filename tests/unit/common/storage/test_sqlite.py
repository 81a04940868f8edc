"""SQLite files: opening, schemas, transactions, and faults of the disk."""

import asyncio
import contextlib
import itertools
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError, SchemaTooNew, StoreUnavailable
from solstice_common.settings import sqlite_path
from solstice_common.storage.migrations import statements
from solstice_common.storage.sqlite import Migration, SqliteDatabase, migrations_of

SCHEMA = (Migration(1, "CREATE TABLE things (name TEXT PRIMARY KEY, data BLOB);\n"),)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    async with SqliteDatabase.open(tmp_path / "things.db", SCHEMA, busy_seconds=0.05) as opened:
        yield opened


def add(name: str, size: int = 0) -> "Add":
    return Add(name, size)


class Add:
    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def __call__(self, connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO things VALUES (?, zeroblob(?))", (self.name, self.size))
        return self.name


def names(connection: sqlite3.Connection) -> list[str]:
    return [row["name"] for row in connection.execute("SELECT name FROM things ORDER BY name")]


FULL, NORMAL = 2, 1
_texts = itertools.count()


def synchronous_level(connection: sqlite3.Connection) -> int:
    """How the transaction is committed (sqlite.org/pragma.html#pragma_synchronous)."""
    # Each time another text: a cached statement answers what was true when it was compiled.
    (level,) = connection.execute(f"PRAGMA synchronous -- {next(_texts)}").fetchone()
    return int(level)


@contextlib.contextmanager
def one_group(database: SqliteDatabase) -> Iterator[None]:
    """Calls that are submitted meanwhile are written in one transaction."""
    started, go = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> None:
        started.set()
        assert go.wait(10)

    database.submit(wait)
    assert started.wait(10)
    try:
        yield
    finally:
        go.set()


class TestPath:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///broker.db", Path("broker.db")),
            ("sqlite:///state/broker.db", Path("state/broker.db")),
            ("sqlite:////var/lib/solstice/broker.db", Path("/var/lib/solstice/broker.db")),
            ("sqlite:///~/broker.db", Path.home() / "broker.db"),
            ("sqlite:///with space%20.db", Path("with space%20.db")),
        ],
        ids=["relative", "relative in a directory", "absolute", "home", "as it stands"],
    )
    def test_the_path_is_what_follows_three_slashes(self, url: str, path: Path) -> None:
        assert sqlite_path(url) == path

    @pytest.mark.parametrize(
        "url",
        ["sqlite://", "sqlite:///", "sqlite:broker.db", "sqlite://host/broker.db", "sqlite:///:memory:",
         "sqlite:///a.db?mode=ro", "sqlite:///a.db#x", "sqlite:///dir/", "postgresql:///x", "", "sqlite:///a\0b"],
    )  # fmt: skip
    def test_anything_else_is_a_configuration_error_that_repeats_it(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as raised:
            sqlite_path(url)
        assert repr(url) in str(raised.value)


class TestWriting:
    async def test_a_write_returns_what_the_work_returned_and_is_seen_by_readers(
        self, database: SqliteDatabase
    ) -> None:
        assert await database.write(add("a")) == "a"
        assert await database.read(names) == ["a"]

    async def test_what_was_written_is_there_when_the_file_is_opened_again(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
                await database.write(add(name))
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
            assert await database.read(names) == ["a", "b"]

    async def test_calls_made_during_a_commit_are_one_transaction(self, database: SqliteDatabase) -> None:
        traced: list[str] = []
        await database.write(lambda connection: connection.set_trace_callback(traced.append))
        with one_group(database):
            calls = [database.submit(add(f"{number:03}")) for number in range(200)]
        assert await asyncio.gather(*calls) == [f"{number:03}" for number in range(200)]
        await database.write(lambda connection: connection.set_trace_callback(None))
        # The call that held the writer back, the two hundred, and the one that ended the trace.
        assert traced.count("BEGIN IMMEDIATE") == 3

    async def test_calls_take_effect_in_the_order_submitted(self, database: SqliteDatabase) -> None:
        order: list[int] = []
        calls = [
            database.submit(partial(lambda number, _: order.append(number), number)) for number in range(3000)
        ]
        await asyncio.gather(*calls)
        assert order == list(range(3000))

    async def test_an_exception_undoes_its_own_call_only(self, database: SqliteDatabase) -> None:
        def fail(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO things VALUES ('half', NULL)")
            raise LookupError("on purpose")

        with one_group(database):
            before, failing, after = (
                database.submit(add("a")),
                database.submit(fail),
                database.submit(add("b")),
            )
        assert await before == "a"
        assert await after == "b"
        with pytest.raises(LookupError, match="on purpose"):
            await failing
        assert await database.read(names) == ["a", "b"]

    async def test_a_broken_constraint_is_reported_as_it_is(self, database: SqliteDatabase) -> None:
        await database.write(add("a"))
        with pytest.raises(sqlite3.IntegrityError):
            await database.write(add("a"))
        assert await database.write(add("b")) == "b"

    @pytest.mark.parametrize("way", ["write", "read"])
    async def test_a_mistake_in_our_own_sql_is_not_called_unavailable(
        self, database: SqliteDatabase, way: str
    ) -> None:
        call = database.write if way == "write" else database.read
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await call(lambda connection: connection.execute("SELECT * FROM nowhere"))

    async def test_work_that_raises_stop_iteration_does_not_hang(self, database: SqliteDatabase) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await database.write(lambda connection: next(connection.execute("SELECT 1 WHERE 0")))

    async def test_a_call_cancelled_before_its_turn_is_not_done(self, database: SqliteDatabase) -> None:
        with one_group(database):
            dropped, stored = database.submit(add("dropped")), database.submit(add("kept"))
            dropped.cancel()
        assert await stored == "kept"
        assert await database.read(names) == ["kept"]

    async def test_a_call_that_is_cancelled_while_it_runs_harms_no_other(
        self, database: SqliteDatabase
    ) -> None:
        started, go = threading.Event(), threading.Event()

        def slow(connection: sqlite3.Connection) -> None:
            started.set()
            assert go.wait(10)
            add("slow")(connection)

        running = asyncio.create_task(database.write(slow))
        await asyncio.to_thread(started.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        go.set()
        assert await database.write(add("after")) == "after"
        assert await database.read(names) == ["after", "slow"]

    async def test_what_goes_along_is_done_with_the_next_group_and_not_before(
        self, database: SqliteDatabase
    ) -> None:
        along = asyncio.create_task(database.write_along(add("along"), within_seconds=60.0))
        await asyncio.sleep(0)
        assert await database.read(names) == []
        assert await database.write(add("next")) == "next"
        assert await along == "along"
        assert await database.read(names) == ["along", "next"]

    async def test_a_write_along_without_another_write_is_done_alone(self, database: SqliteDatabase) -> None:
        assert await database.write_along(add("alone"), within_seconds=0.001) == "alone"
        assert await database.read(names) == ["alone"]

    async def test_a_group_waits_for_the_disk_when_one_of_its_calls_is_synchronous(
        self, database: SqliteDatabase
    ) -> None:
        assert await database.write(synchronous_level) == FULL
        assert await database.write(synchronous_level, synchronous=False) == NORMAL
        assert await database.write_along(synchronous_level, within_seconds=0.001) == NORMAL
        with one_group(database):
            calls = [database.submit(synchronous_level)]
            calls += [asyncio.ensure_future(database.write(synchronous_level, synchronous=False))]
            await asyncio.sleep(0)
        assert await asyncio.gather(*calls) == [FULL, FULL]

    async def test_a_failure_of_what_goes_along_is_its_own(self, database: SqliteDatabase) -> None:
        await database.write(add("there"))
        along = asyncio.create_task(database.write_along(add("there"), within_seconds=60.0))
        await asyncio.sleep(0)
        assert await database.write(add("next")) == "next"
        with pytest.raises(sqlite3.IntegrityError):
            await along
        assert await database.read(names) == ["next", "there"]

    async def test_a_reader_cannot_write(self, database: SqliteDatabase) -> None:
        with pytest.raises(StoreUnavailable, match="readonly"):
            await database.read(add("a"))
        assert await database.read(names) == []


class TestTrouble:
    async def test_a_full_disk_fails_the_call_that_needed_the_room_and_spares_the_others(
        self, database: SqliteDatabase
    ) -> None:
        def bound(connection: sqlite3.Connection) -> None:
            used = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {used + 10}")

        await database.write(bound)
        with one_group(database):
            small, big, other = (
                database.submit(add("small")),
                database.submit(add("big", 10_000_000)),
                database.submit(add("other")),
            )
        assert await small == "small"
        with pytest.raises(StoreUnavailable, match="full"):
            await big
        assert await other == "other"
        assert await database.read(names) == ["other", "small"]

    async def test_a_disk_too_full_to_commit_fails_the_whole_group(self, database: SqliteDatabase) -> None:
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
        with one_group(database):
            calls = [database.submit(add(name, 100_000)) for name in "abc"]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="full"):
                await call
        assert await database.read(names) == []
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
        assert await database.write(add("after")) == "after"

    async def test_a_file_that_others_keep_locked_is_unavailable_and_comes_back(
        self, database: SqliteDatabase
    ) -> None:
        with contextlib.closing(sqlite3.connect(str(database.place), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked") as raised:
                await database.write(add("a"))
            assert str(database.place) in str(raised.value)
            other.execute("ROLLBACK")
        assert await database.write(add("a")) == "a"

    async def test_readers_are_not_kept_by_a_writer(self, database: SqliteDatabase) -> None:
        await database.write(add("a"))
        with contextlib.closing(sqlite3.connect(str(database.place), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("INSERT INTO things VALUES ('b', NULL)")
            assert await database.read(names) == ["a"]
            other.execute("ROLLBACK")

    async def test_leaving_carries_out_what_was_asked_for(self, tmp_path: Path) -> None:
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
            calls = [database.submit(add(f"{number:04}")) for number in range(1500)]
        assert len(await asyncio.gather(*calls)) == 1500
        with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as connection:
            assert connection.execute("SELECT count(*) FROM things").fetchone() == (1500,)

    async def test_leaving_carries_out_what_was_to_go_along(self, tmp_path: Path) -> None:
        async with SqliteDatabase.open(tmp_path / "things.db", SCHEMA) as database:
            along = asyncio.create_task(database.write_along(add("along"), within_seconds=60.0))
            await asyncio.sleep(0)
        assert await along == "along"

    async def test_a_call_after_closing_fails_at_once(self, tmp_path: Path) -> None:
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
            pass
        for call in (database.write, database.read):
            with pytest.raises(StoreUnavailable, match="closed"):
                await call(names)

    async def test_the_write_ahead_log_stays_small_under_steady_writing_and_reading(
        self, database: SqliteDatabase, tmp_path: Path
    ) -> None:
        for number in range(600):
            await asyncio.gather(
                database.write(add(f"{number}", 100_000)), database.read(names), database.read(names)
            )
        log = tmp_path / "things.db-wal"
        assert (tmp_path / "things.db").stat().st_size > 40_000_000
        assert log.stat().st_size < 20_000_000

    @pytest.mark.parametrize("kind", ["directory", "garbage", "under a file"])
    async def test_a_file_that_cannot_be_used_is_reported_when_opening(
        self, tmp_path: Path, kind: str
    ) -> None:
        path = tmp_path / "x.db"
        if kind == "directory":
            path.mkdir()
        elif kind == "garbage":
            path.write_bytes(b"no database at all" * 100)
        else:
            path.write_bytes(b"")
            path /= "y.db"
        problem = ConfigurationError if kind == "under a file" else StoreUnavailable
        with pytest.raises(problem) as raised:
            async with SqliteDatabase.open(path, SCHEMA):
                pass
        assert str(path) in str(raised.value)


class TestMigrations:
    async def test_they_are_applied_once_and_in_order(self, tmp_path: Path) -> None:
        second = Migration(
            2, "ALTER TABLE things ADD COLUMN more TEXT;\nCREATE INDEX by_more ON things (more);\n"
        )
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
            await database.write(add("a"))
        for _ in range(2):
            async with SqliteDatabase.open(tmp_path / "x.db", (*SCHEMA, second)) as database:
                rows = await database.read(
                    lambda connection: [
                        tuple(row) for row in connection.execute("SELECT name, more FROM things")
                    ]
                )
                assert rows == [("a", None)]

    async def test_a_file_of_a_newer_version_is_left_alone(self, tmp_path: Path) -> None:
        async with SqliteDatabase.open(tmp_path / "x.db", (*SCHEMA, Migration(7, "CREATE TABLE later (x);"))):
            pass
        with pytest.raises(SchemaTooNew) as raised:
            async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA):
                pass
        assert (raised.value.found, raised.value.known) == (7, 1)

    async def test_a_changed_migration_is_refused(self, tmp_path: Path) -> None:
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA):
            pass
        with pytest.raises(ConfigurationError, match="migration 1"):
            async with SqliteDatabase.open(tmp_path / "x.db", (Migration(1, "CREATE TABLE others (x);"),)):
                pass

    async def test_one_that_fails_leaves_nothing_behind(self, tmp_path: Path) -> None:
        broken = Migration(1, "CREATE TABLE half (x);\nCREATE TABLE nonsense;\n")
        with pytest.raises(sqlite3.OperationalError, match="syntax"):
            async with SqliteDatabase.open(tmp_path / "x.db", (broken,)):
                pass
        async with SqliteDatabase.open(tmp_path / "x.db", SCHEMA) as database:
            assert await database.write(add("a")) == "a"

    def test_the_files_of_a_package_are_found_in_order(self) -> None:
        migrations = migrations_of("solstice_common.broker.embedded.schema")
        assert [migration.version for migration in migrations] == list(range(1, len(migrations) + 1))
        assert all(migration.sql.strip() for migration in migrations)

    @pytest.mark.parametrize(
        ("script", "count"),
        [
            ("", 0),
            ("\n  \n", 0),
            ("CREATE TABLE a (x);\nCREATE TABLE b (x);\n", 2),
            ("CREATE TABLE a (\n  x  -- with; a semicolon\n);\n", 1),
            ("CREATE TABLE a (x)", 1),
            ("CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  SELECT 1;\n  SELECT 2;\nEND;\nSELECT 1;\n", 2),
        ],
        ids=["empty", "blank", "two", "comment", "no semicolon", "trigger"],
    )
    def test_a_script_is_cut_into_statements(self, script: str, count: int) -> None:
        found = list(statements(script))
        assert len(found) == count
        assert "".join(found).strip() == script.strip()
