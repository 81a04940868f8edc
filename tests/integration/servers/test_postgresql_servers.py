"""The tests' own PostgreSQL servers are private, controllable, and end with the tests."""

import asyncpg
import pytest

from tests.servers.postgresql import PostgreSQLServer, ScratchDatabase, own_postgresql
from tests.servers.postgresql_server import OLDEST


def test_the_server_is_of_a_version_that_we_promise_to_work_on(postgresql: PostgreSQLServer) -> None:
    assert postgresql.answers()
    assert int(postgresql.version.partition(".")[0]) >= OLDEST


def test_a_database_is_empty_and_gone_after_its_test(postgresql: PostgreSQLServer) -> None:
    with postgresql.database() as database, postgresql.database() as other:
        database.query("CREATE TABLE kept (id int)")
        with pytest.raises(asyncpg.UndefinedTableError):
            other.query("SELECT * FROM kept")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        database.query("SELECT 1")


async def test_connections_can_be_closed_from_the_servers_side(
    postgresql_database: ScratchDatabase,
) -> None:
    connection = await asyncpg.connect(postgresql_database.url)
    assert postgresql_database.disconnect() == 1
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetch("SELECT 1")
    connection.terminate()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_of_ones_own_comes_back_on_the_same_port_with_what_was_committed(
    own_postgresql_database: ScratchDatabase, how: str
) -> None:
    server = own_postgresql_database.server
    own_postgresql_database.query("CREATE TABLE kept AS SELECT 7 AS id")
    getattr(server, how)()
    assert not server.answers()
    server.start()
    assert [row["id"] for row in own_postgresql_database.query("SELECT id FROM kept")] == [7]


def test_a_server_to_measure_waits_for_the_disk() -> None:
    with own_postgresql(synced=True, settings={"work_mem": "5MB"}) as server, server.database() as database:
        answer = database.query(
            "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commits,"
            " current_setting('work_mem') AS memory"
        )
        assert tuple(answer[0]) == ("on", "on", "5MB")
