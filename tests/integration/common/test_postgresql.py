"""What a PostgreSQL database promises, on a real server."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import asyncpg
import pytest

from solstice_common.errors import ConfigurationError, SchemaTooNew, StoreUnavailable
from solstice_common.storage import postgresql, postgresql_connections
from solstice_common.storage.migrations import Migration
from solstice_common.storage.postgresql import Connection, PostgreSQLDatabase
from tests.servers.ports import free_ports
from tests.servers.postgresql import PostgreSQLServer, ScratchDatabase
from tests.servers.proxy import fault_proxy

SCHEMA = (
    Migration(1, "CREATE TABLE things (name text PRIMARY KEY, size int NOT NULL DEFAULT 0);\n"),
    Migration(
        2, "-- Two statements.\nCREATE INDEX ON things (size);\nINSERT INTO things VALUES ('first');\n"
    ),
)


@pytest.fixture
async def database(postgresql_database: ScratchDatabase) -> AsyncIterator[PostgreSQLDatabase]:
    async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA) as opened:
        yield opened


async def _waits_for_locks(database: ScratchDatabase, count: int) -> None:
    """Wait until so many sessions wait for locks."""
    await _is_seen(database, "wait_event_type = 'Lock' HAVING count(*) >= $1", count)


async def _runs(database: ScratchDatabase, statement: str) -> None:
    """Wait until a session is at work on the statement."""
    await _is_seen(database, "state = 'active' AND query = $1", statement)


async def _is_seen(database: ScratchDatabase, what: str, argument: object) -> None:
    query = f"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND {what}"  # noqa: S608  our own words
    while not await asyncio.to_thread(database.query, query, argument):  # noqa: ASYNC110  other sessions send no notification
        await asyncio.sleep(0.02)


class Add:
    """Insert one name; count how often it ran."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = 0

    async def __call__(self, connection: Connection) -> str:
        self.runs += 1
        await connection.execute("INSERT INTO things VALUES ($1)", self.name)
        return self.name


async def names(database: PostgreSQLDatabase) -> list[str]:
    return [row["name"] for row in await database.fetch("SELECT name FROM things ORDER BY name")]


async def complete_pairs(database: PostgreSQLDatabase) -> set[str]:
    """Of which `NAME one` and `NAME other` were added; there is no half of any."""
    halves = [name.rsplit(" ", 1) for name in await names(database) if name != "first"]
    added = {name for name, _ in halves}
    assert len(halves) == 2 * len(added)
    return added


async def until_it_answers(database: PostgreSQLDatabase) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await database.fetch("SELECT 1")
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


class TestTransactions:
    async def test_a_transaction_returns_what_the_work_returned_and_is_seen_by_readers(
        self, database: PostgreSQLDatabase
    ) -> None:
        assert await database.transaction(Add("a")) == "a"
        assert await names(database) == ["a", "first"]

    async def test_what_is_urgent_does_not_stand_in_line_behind_those_that_wait_for_a_lock(
        self, database: PostgreSQLDatabase, postgresql_database: ScratchDatabase
    ) -> None:
        async def change(connection: Connection) -> None:
            await connection.execute("UPDATE things SET size = size + 1")

        async def one(connection: Connection) -> int:
            return int(await connection.fetchval("SELECT 1"))

        holder = await asyncpg.connect(postgresql_database.url)
        try:
            holding = holder.transaction()
            await holding.start()
            await holder.execute("UPDATE things SET size = -1")
            async with asyncio.TaskGroup() as tasks:
                for _ in range(postgresql.CONNECTIONS + 1):
                    tasks.create_task(database.transaction(change))
                async with asyncio.timeout(30):
                    await _waits_for_locks(postgresql_database, postgresql.CONNECTIONS)
                    assert await database.transaction(one, urgent=True) == 1
                await holding.rollback()
        finally:
            await holder.close()

    async def test_an_exception_undoes_the_work(self, database: PostgreSQLDatabase) -> None:
        async def fail(connection: Connection) -> None:
            await connection.execute("INSERT INTO things VALUES ('half')")
            raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            await database.transaction(fail)
        assert await names(database) == ["first"]

    async def test_a_mistake_in_our_own_sql_is_not_called_unavailable(
        self, database: PostgreSQLDatabase
    ) -> None:
        with pytest.raises(asyncpg.UndefinedTableError):
            await database.fetch("SELECT * FROM nowhere")
        with pytest.raises(asyncpg.UniqueViolationError):
            await database.transaction(Add("first"))
        with pytest.raises(asyncpg.DataError):
            await database.fetch("SELECT $1::int", "seven")

    async def test_of_two_that_wait_for_each_other_both_are_done(
        self, postgresql_database: ScratchDatabase, database: PostgreSQLDatabase
    ) -> None:
        postgresql_database.query("INSERT INTO things VALUES ('other')")
        postgresql_database.query(f"ALTER DATABASE {postgresql_database.name} SET deadlock_timeout = '20ms'")
        met, runs = asyncio.Barrier(2), 0

        async def both(connection: Connection, first: str, second: str, *, meet: bool) -> None:
            nonlocal runs
            runs += 1
            grow = "UPDATE things SET size = size + 1 WHERE name = $1"
            await connection.execute(grow, first)
            if meet and runs <= 2:
                await met.wait()
            await connection.execute(grow, second)

        async with (
            PostgreSQLDatabase.open(postgresql_database.url, SCHEMA) as quick,
            asyncio.timeout(30),
        ):
            await asyncio.gather(
                quick.transaction(lambda connection: both(connection, "first", "other", meet=True)),
                quick.transaction(lambda connection: both(connection, "other", "first", meet=True)),
            )
        rows = await database.fetch("SELECT size FROM things")
        assert [row["size"] for row in rows] == [2, 2]
        assert runs == 3

    @pytest.mark.parametrize("code", ["40001", "40P01"])
    async def test_what_was_undone_again_and_again_is_unavailable_in_the_end(
        self, database: PostgreSQLDatabase, code: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgresql, "ATTEMPTS", 3)
        runs = 0

        async def fail(connection: Connection) -> None:
            nonlocal runs
            runs += 1
            await connection.execute(f"DO $$ BEGIN RAISE 'no luck' USING ERRCODE = '{code}'; END $$")

        with pytest.raises(StoreUnavailable, match="no luck"):
            await database.transaction(fail)
        assert runs == 3

    async def test_a_statement_that_another_process_migrated_away_under_us_runs_again(
        self, postgresql_database: ScratchDatabase, database: PostgreSQLDatabase
    ) -> None:
        async def all_of_it(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch("SELECT * FROM things")

        assert len((await database.transaction(all_of_it))[0]) == 2
        postgresql_database.query("ALTER TABLE things ADD COLUMN colour text")
        assert len((await database.transaction(all_of_it))[0]) == 3

    async def test_a_reader_sees_one_snapshot_and_cannot_write(self, database: PostgreSQLDatabase) -> None:
        async def twice(connection: Connection) -> tuple[int, int]:
            before = await connection.fetchval("SELECT count(*) FROM things")
            await database.transaction(Add("meanwhile"))
            return before, await connection.fetchval("SELECT count(*) FROM things")

        assert await database.read(twice) == (1, 1)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await database.read(Add("b"))

    async def test_a_process_that_was_frozen_in_a_transaction_loses_it_and_delays_no_other(
        self,
        postgresql_database: ScratchDatabase,
        database: PostgreSQLDatabase,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(postgresql_connections.SESSION, "idle_in_transaction_session_timeout", "50ms")
        locked, go = asyncio.Event(), asyncio.Event()
        change = "UPDATE things SET size = $1"

        async def freeze(connection: Connection) -> None:
            await connection.execute(change, 1)
            locked.set()
            await go.wait()
            await connection.execute(change, 2)

        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA) as frozen, asyncio.timeout(30):
            late = asyncio.create_task(frozen.transaction(freeze))
            await locked.wait()
            await database.fetch(change, 7)
            go.set()
            with pytest.raises(StoreUnavailable):
                await late
        assert [row["size"] for row in await database.fetch("SELECT size FROM things")] == [7]

    async def test_a_single_statement_that_was_undone_for_another_says_so_and_left_nothing(
        self, database: PostgreSQLDatabase
    ) -> None:
        undone = "CREATE FUNCTION undone() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '40001'; END $$"
        await database.transaction(lambda connection: connection.execute(undone))
        add = "INSERT INTO things VALUES ($1) RETURNING name"
        assert (
            await database.at_once(f"WITH added AS ({add}) SELECT undone() FROM added", "lost") is None  # noqa: S608  our own words
        )
        stored = await database.at_once(add, "kept")
        assert stored is not None
        assert [row["name"] for row in stored] == ["kept"]
        assert await names(database) == ["first", "kept"]


class TestTrouble:
    async def test_a_missing_server_is_unavailable_and_the_error_shows_its_url_without_the_password(
        self,
    ) -> None:
        (port,) = free_ports(1)
        with pytest.raises(StoreUnavailable, match=f"postgresql://ada@127.0.0.1:{port}/jobs ") as raised:
            async with PostgreSQLDatabase.open(f"postgresql://ada:secret@127.0.0.1:{port}/jobs?ssl=disable"):
                pass
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        ("part", "instead"), [("tester:", "nobody:"), ("@127", "x@127"), ("/test_", "/none_")],
        ids=["user", "password", "database"],
    )  # fmt: skip
    async def test_what_the_server_does_not_know_is_a_wrong_setting(
        self, postgresql_database: ScratchDatabase, part: str, instead: str
    ) -> None:
        if "tester:" not in postgresql_database.url:
            pytest.fail("this table is written for the tests' own servers")
        with pytest.raises(ConfigurationError, match="the database postgresql://"):
            async with PostgreSQLDatabase.open(postgresql_database.url.replace(part, instead)):
                pass

    @pytest.mark.parametrize("url", ["postgresql://host:port/db", "postgresql://host/db?sslmode=perhaps"])
    async def test_an_address_that_cannot_be_read_is_a_wrong_setting(self, url: str) -> None:
        with pytest.raises(ConfigurationError):
            async with PostgreSQLDatabase.open(url):
                pass

    @pytest.mark.parametrize("how", ["stop", "kill"])
    async def test_a_server_that_goes_away_is_unavailable_until_it_is_back(
        self, own_postgresql_database: ScratchDatabase, how: str
    ) -> None:
        server = own_postgresql_database.server
        async with PostgreSQLDatabase.open(own_postgresql_database.url, SCHEMA) as database:
            await database.transaction(Add("kept"))
            started = asyncio.Event()

            async def interrupted(connection: Connection) -> None:
                await connection.execute("INSERT INTO things VALUES ('lost')")
                started.set()
                await connection.execute("SELECT pg_sleep(60)")

            running = asyncio.create_task(database.transaction(interrupted))
            await started.wait()
            await asyncio.to_thread(getattr(server, how))
            with pytest.raises(StoreUnavailable):
                await running
            with pytest.raises(StoreUnavailable):
                await database.fetch("SELECT 1")
            with pytest.raises(StoreUnavailable):
                await database.at_once("SELECT 1")
            await asyncio.to_thread(server.start)
            await until_it_answers(database)
            assert await names(database) == ["first", "kept"]

    async def test_connections_closed_by_the_server_are_replaced(
        self, postgresql_database: ScratchDatabase, database: PostgreSQLDatabase
    ) -> None:
        await asyncio.gather(*(database.fetch("SELECT pg_sleep(0.05)") for _ in range(4)))
        assert await asyncio.to_thread(postgresql_database.disconnect) >= 1
        await until_it_answers(database)
        await database.transaction(Add("after"))

    async def test_a_connection_that_ended_between_two_statements_is_unavailable_and_changed_nothing(
        self, postgresql_database: ScratchDatabase, database: PostgreSQLDatabase
    ) -> None:
        async def interrupted(connection: Connection) -> None:
            known = asyncio.Event()
            connection.add_termination_listener(lambda _: known.set())
            await connection.execute("INSERT INTO things VALUES ('lost')")
            await asyncio.to_thread(postgresql_database.disconnect)
            await known.wait()
            await connection.execute("INSERT INTO things VALUES ('late')")

        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable):
                await database.transaction(interrupted)
            await until_it_answers(database)
        assert await names(database) == ["first"]

    async def test_connections_that_end_at_any_moment_are_unavailable_and_leave_no_half_of_a_change(
        self, postgresql_database: ScratchDatabase, database: PostgreSQLDatabase
    ) -> None:
        done: list[str] = []
        lost = 0
        over = asyncio.Event()

        async def both(connection: Connection, name: str, pause: float) -> str:
            await Add(f"{name} one")(connection)
            await asyncio.sleep(pause)
            await Add(f"{name} other")(connection)
            return name

        async def call_on(caller: int) -> None:
            nonlocal lost
            for number in itertools.count():
                if over.is_set():
                    return
                name, pause = f"{caller}-{number}", number % 5 / 1000
                try:
                    done.append(await database.transaction(partial(both, name=name, pause=pause)))
                except StoreUnavailable:
                    lost += 1

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for caller in range(6):
                group.create_task(call_on(caller))
            for _ in range(50):
                await asyncio.to_thread(postgresql_database.disconnect)
            over.set()
        await until_it_answers(database)
        assert lost > 0
        assert await complete_pairs(database) >= set(done)

    async def test_a_black_hole_is_unavailable_after_a_while_and_forgotten_when_it_ends(
        self, postgresql_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgresql_connections, "STATEMENT_SECONDS", 0.2)
        monkeypatch.setattr(postgresql_connections, "CONNECT_SECONDS", 0.5)
        async with (
            fault_proxy(postgresql_database.url) as proxy,
            PostgreSQLDatabase.open(proxy.url(postgresql_database.url), SCHEMA) as database,
        ):
            await database.transaction(Add("before"))
            proxy.freeze()
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await database.transaction(Add("lost"))
            proxy.pass_through()
            proxy.drop()
            await until_it_answers(database)
            await database.transaction(Add("after"))

    async def test_more_calls_than_connections_wait_their_turn(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA, connections=2) as database:
            await asyncio.gather(*(database.transaction(Add(f"{number:03}")) for number in range(100)))
            assert len(await names(database)) == 101

    async def test_a_call_after_the_end_is_unavailable(self, postgresql_database: ScratchDatabase) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url) as database:
            pass
        with pytest.raises(StoreUnavailable):
            await database.fetch("SELECT 1")

    async def test_a_cancelled_call_gives_its_connection_back(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA, connections=1) as database:
            started = asyncio.Event()

            async def slow(connection: Connection) -> None:
                await connection.execute("INSERT INTO things VALUES ('cancelled')")
                started.set()
                await connection.execute("SELECT pg_sleep(60)")

            running = asyncio.create_task(database.transaction(slow))
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await names(database) == ["first"]

    async def test_calls_that_are_cancelled_at_any_moment_leave_no_half_of_a_change_and_disturb_no_other(
        self, database: PostgreSQLDatabase
    ) -> None:
        rng, done, cancelled = random.Random(26), set[str](), 0

        async def both(connection: Connection, name: str) -> str:
            # A statement that the session does not know yet is prepared first.
            await connection.execute(f"INSERT INTO things VALUES ($1) /* {name} */", f"{name} one")  # noqa: S608  our own words
            await Add(f"{name} other")(connection)
            assert await connection.fetchval("SELECT $1::text", name) == name
            return name

        async def call_on(caller: int) -> None:
            nonlocal cancelled
            for number in range(150):
                name = f"{caller}-{number}"
                calling = asyncio.ensure_future(database.transaction(partial(both, name=name)))
                await asyncio.wait({calling}, timeout=rng.uniform(0, 2 * usual))
                calling.cancel()
                await asyncio.wait({calling})
                if calling.cancelled():
                    cancelled += 1
                else:
                    done.add(calling.result())

        begun = time.monotonic()
        for number in range(20):
            first = (partial(both, name=f"{caller}-first-{number}") for caller in range(6))
            await asyncio.gather(*map(database.transaction, first))
        usual = (time.monotonic() - begun) / 20
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for caller in range(6):
                group.create_task(call_on(caller))
        assert cancelled > len(done) / 10
        assert await complete_pairs(database) >= done > set()

    @pytest.mark.parametrize("call", ["transaction", "read", "fetch"])
    async def test_a_cancelled_call_ends_soon_though_the_server_goes_on_with_it(
        self, postgresql_database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        async def comes_too_early(**_: object) -> None:
            """As a request to cancel does that arrives before the statement: the server ignores it."""

        monkeypatch.setattr(asyncpg.connect_utils, "_cancel", comes_too_early)
        monkeypatch.setattr(postgresql_connections, "CLOSE_SECONDS", 0.2)
        sleep = "SELECT pg_sleep(60)"
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA, connections=1) as database:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "transaction": lambda: database.transaction(lambda connection: connection.execute(sleep)),
                "read": lambda: database.read(lambda connection: connection.execute(sleep)),
                "fetch": lambda: database.fetch(sleep),
            }
            running = asyncio.ensure_future(calls[call]())
            await _runs(postgresql_database, sleep)
            running.cancel()
            await asyncio.wait({running}, timeout=5)
            assert running.cancelled()
            assert await names(database) == ["first"]


class TestMigrations:
    async def test_processes_that_start_at_once_migrate_once(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        async with AsyncExitStack() as stack:
            opened = await asyncio.gather(
                *(
                    stack.enter_async_context(PostgreSQLDatabase.open(postgresql_database.url, SCHEMA))
                    for _ in range(8)
                )
            )
            rows = await opened[0].fetch("SELECT version FROM schema_migrations ORDER BY version")
            assert [row["version"] for row in rows] == [1, 2]
            assert await names(opened[7]) == ["first"]

    async def test_an_older_database_gets_what_it_lacks(self, postgresql_database: ScratchDatabase) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA[:1]) as database:
            await database.transaction(Add("old"))
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA) as database:
            assert await names(database) == ["first", "old"]

    async def test_a_step_that_fails_leaves_nothing_of_all_steps(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        broken = (*SCHEMA, Migration(3, "CREATE TABLE half (id int);\nSELECT * FROM nowhere;\n"))
        with pytest.raises(asyncpg.UndefinedTableError):
            async with PostgreSQLDatabase.open(postgresql_database.url, broken):
                pass
        assert postgresql_database.query("SELECT to_regclass('things') AS it")[0]["it"] is None

    async def test_a_newer_database_is_refused(self, postgresql_database: ScratchDatabase) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA):
            pass
        with pytest.raises(SchemaTooNew, match="version 2, this Solstice CI knows 1"):
            async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA[:1]):
                pass

    async def test_a_changed_migration_is_refused(self, postgresql_database: ScratchDatabase) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA):
            pass
        changed = (Migration(1, "CREATE TABLE others (id int);\n"), SCHEMA[1])
        with pytest.raises(ConfigurationError, match="migration 1"):
            async with PostgreSQLDatabase.open(postgresql_database.url, changed):
                pass

    async def test_a_role_that_may_only_use_the_tables_can_open_an_up_to_date_database(
        self, postgresql_database: ScratchDatabase, postgresql: PostgreSQLServer
    ) -> None:
        async with PostgreSQLDatabase.open(postgresql_database.url, SCHEMA):
            pass
        role = f"reader_{postgresql_database.name}"
        postgresql_database.query(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
        try:
            postgresql_database.query(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            address = postgresql_database.url.rpartition("@")[2]
            async with PostgreSQLDatabase.open(f"postgresql://{role}:p@{address}", SCHEMA) as database:
                assert await names(database) == ["first"]
        finally:
            postgresql_database.query(f"DROP OWNED BY {role}")
            postgresql_database.query(f"DROP ROLE {role}")
