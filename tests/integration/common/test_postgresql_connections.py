"""Pooled connections, and transactions that begin with their first statement, on a real server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from solstice_common.storage.postgresql_connections import (
    IDLE_CONNECTIONS,
    Connection,
    ConnectionPool,
)
from solstice_common.storage.postgresql_transaction import TransactionMode, transaction
from tests.servers.postgresql import ScratchDatabase
from tests.servers.proxy import fault_proxy

ADD = "INSERT INTO things VALUES ($1)"


@pytest.fixture
async def connections(postgresql_database: ScratchDatabase) -> AsyncIterator[ConnectionPool]:
    postgresql_database.query("CREATE TABLE things (name text PRIMARY KEY)")
    async with ConnectionPool.open(postgresql_database.url, IDLE_CONNECTIONS + 2) as opened:
        yield opened


@pytest.fixture
async def only_one(postgresql_database: ScratchDatabase) -> AsyncIterator[ConnectionPool]:
    async with ConnectionPool.open(postgresql_database.url, 1) as opened:
        yield opened


async def session(connections: ConnectionPool) -> int:
    async with connections.acquired() as connection:
        return connection.get_server_pid()


async def names(connections: ConnectionPool) -> list[str]:
    async with connections.acquired() as connection:
        return [row["name"] for row in await connection.fetch("SELECT name FROM things ORDER BY name")]


class TestTransactions:
    @pytest.mark.parametrize(
        "first",
        [
            lambda connection: connection.fetch("SELECT $1::text", "with an argument"),
            lambda connection: connection.execute("SELECT 1; SELECT 2"),
            lambda connection: connection.prepare("SELECT $1::text"),
            lambda connection: connection.copy_from_query("SELECT 1", output=lambda _: asyncio.sleep(0)),
            lambda _: asyncio.sleep(0.01),
        ],
        ids=["prepared", "simple", "only prepared", "copy", "none"],
    )
    @pytest.mark.parametrize("times", [1, 3], ids=["new", "known"])
    async def test_it_begins_with_the_first_event_of_any_kind(
        self, connections: ConnectionPool, first: Callable[[Connection], Awaitable[object]], times: int
    ) -> None:
        async def undone() -> None:
            async with connections.acquired() as connection, transaction(connection, TransactionMode.WRITING):
                await first(connection)
                assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
                await connection.execute(ADD, "undone")
                raise LookupError

        for number in range(times):
            with pytest.raises(LookupError):
                await undone()
            async with connections.acquired() as connection, transaction(connection, TransactionMode.WRITING):
                await first(connection)
                await connection.execute(ADD, f"kept {number}")
        assert await names(connections) == [f"kept {number}" for number in range(times)]

    async def test_one_whose_first_statement_fails_is_over_and_the_session_goes_on(
        self, connections: ConnectionPool
    ) -> None:
        for _ in range(2):
            with pytest.raises(asyncpg.UndefinedTableError):
                async with (
                    connections.acquired() as connection,
                    transaction(connection, TransactionMode.WRITING),
                ):
                    await connection.fetch("SELECT * FROM nowhere WHERE name = $1", "x")
        async with connections.acquired() as connection:
            await connection.execute(ADD, "by itself")
            assert not connection.is_in_transaction()
        assert await names(connections) == ["by itself"]

    async def test_one_that_does_nothing_leaves_nothing_open(self, connections: ConnectionPool) -> None:
        async with connections.acquired() as connection:
            async with transaction(connection, TransactionMode.WRITING):
                pass
            assert not connection.is_in_transaction()
            await connection.execute(ADD, "by itself")
        assert await names(connections) == ["by itself"]

    async def test_a_failure_that_was_passed_over_is_not_committed(self, connections: ConnectionPool) -> None:
        async def pass_over() -> None:
            async with connections.acquired() as connection, transaction(connection, TransactionMode.WRITING):
                await connection.execute(ADD, "lost")
                with contextlib.suppress(asyncpg.UniqueViolationError):
                    await connection.execute(ADD, "lost")

        with pytest.raises(RuntimeError, match="a statement had failed"):
            await pass_over()
        assert await names(connections) == []

    async def test_readers_have_one_snapshot_and_may_not_write(self, connections: ConnectionPool) -> None:
        async with connections.acquired() as connection, transaction(connection, TransactionMode.READING):
            assert await connection.fetch("SELECT * FROM things") == []
            async with connections.acquired() as other:
                await other.execute(ADD, "meanwhile")
            assert await connection.fetch("SELECT * FROM things") == []
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            async with connections.acquired() as connection, transaction(connection, TransactionMode.READING):
                await connection.execute(ADD, "x")

    async def test_one_that_is_cancelled_in_a_statement_is_undone_and_its_connection_serves_on(
        self, postgresql_database: ScratchDatabase, connections: ConnectionPool, only_one: ConnectionPool
    ) -> None:
        before = await session(only_one)
        added = asyncio.Event()

        async def cut_short() -> None:
            async with only_one.acquired() as connection, transaction(connection, TransactionMode.WRITING):
                await connection.execute(ADD, "undone")
                added.set()
                await connection.execute("SELECT pg_sleep(60)")

        running = asyncio.create_task(cut_short())
        await added.wait()
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(10):
            assert await session(only_one) == before
        assert await names(connections) == []
        busy = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        )
        assert (await asyncio.to_thread(postgresql_database.query, busy))[0][0] == 0


class TestInHand:
    async def test_one_call_after_another_has_the_same_connection(self, connections: ConnectionPool) -> None:
        assert len({await session(connections) for _ in range(5)}) == 1

    async def test_no_more_than_a_few_are_kept(self, connections: ConnectionPool) -> None:
        most = IDLE_CONNECTIONS + 2
        async with AsyncExitStack() as all_of_them:
            at_once = {
                (await all_of_them.enter_async_context(connections.acquired())).get_server_pid()
                for _ in range(most)
            }
        assert len(at_once) == most
        assert len(connections._idle) == IDLE_CONNECTIONS

    async def test_who_waits_for_one_gets_the_next_that_is_laid_back(self, only_one: ConnectionPool) -> None:
        first = await session(only_one)
        served = []

        async def call(number: int) -> None:
            async with only_one.acquired() as connection:
                assert connection.get_server_pid() == first
                await connection.execute("SELECT pg_sleep(0.01)")
                served.append(number)

        async with asyncio.timeout(10), asyncio.TaskGroup() as calls:
            for number in range(5):
                calls.create_task(call(number))
        assert served == [0, 1, 2, 3, 4]

    async def test_one_that_the_server_ended_meanwhile_is_replaced(
        self, postgresql_database: ScratchDatabase, only_one: ConnectionPool
    ) -> None:
        before = await session(only_one)
        assert await asyncio.to_thread(postgresql_database.disconnect) >= 1
        async with asyncio.timeout(10):
            while True:
                try:
                    async with only_one.acquired() as connection:
                        await connection.execute("SELECT 1")
                        assert connection.get_server_pid() != before
                except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                    await asyncio.sleep(0.01)  # the server's last message had not arrived yet
                else:
                    return

    async def test_all_are_gone_once_it_is_closed(self, postgresql_database: ScratchDatabase) -> None:
        own_count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'solstice-ci' AND datname = current_database()"
        async with ConnectionPool.open(postgresql_database.url, 2) as opened:
            await session(opened)
            assert (await asyncio.to_thread(postgresql_database.query, own_count))[0][0] == 1
        async with asyncio.timeout(10):
            while (await asyncio.to_thread(postgresql_database.query, own_count))[0][0]:  # noqa: ASYNC110  a session that ends sends no notification
                await asyncio.sleep(0.02)


class TestWithoutNewConnections:
    """As when the server's name has no address for a while."""

    async def test_calls_share_the_open_connections(self, postgresql_database: ScratchDatabase) -> None:
        async with (
            fault_proxy(postgresql_database.url) as proxy,
            ConnectionPool.open(proxy.url(postgresql_database.url), 8) as connections,
        ):
            first = await session(connections)
            proxy.refuse_new()
            assert await asyncio.gather(*(session(connections) for _ in range(20))) == [first] * 20

    async def test_a_call_fails_once_no_connection_is_left(
        self, postgresql_database: ScratchDatabase
    ) -> None:
        async with (
            fault_proxy(postgresql_database.url) as proxy,
            ConnectionPool.open(proxy.url(postgresql_database.url), 8) as connections,
        ):
            async with connections.acquired() as connection:
                proxy.refuse_new()
                waiting = [asyncio.create_task(session(connections)) for _ in range(3)]
                await asyncio.wait(waiting, timeout=0.2)
                assert not any(call.done() for call in waiting)
                connection.terminate()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, OSError) for result in results), results
