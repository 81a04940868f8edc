"""Both databases have the tables and columns that the page of the databases names."""

from contextlib import closing

import pytest

from solstice_common.storage.migrations import migrations_of
from solstice_common.storage.postgresql import connected
from solstice_common.storage.postgresql_schema import migrate
from tests.database_tables import SCHEMAS, Schema, columns_of, migrated
from tests.servers.postgresql import ScratchDatabase


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_postgresql_has_the_tables_and_columns_of_sqlite_except_for_those_declared(
    schema: Schema, postgresql_database: ScratchDatabase
) -> None:
    url = postgresql_database.url
    async with connected(url) as connection:
        await migrate(
            connection,
            url,
            migrations_of(f"{schema.package}.postgresql"),
            applied=schema.name_in_postgresql("schema_migrations"),
        )
        rows = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
    in_postgresql = {(row["table_name"], row["column_name"]) for row in rows}
    with closing(migrated(schema)) as sqlite:
        in_sqlite = {(table, column) for table, columns in columns_of(sqlite).items() for column in columns}
    named = {(schema.name_in_postgresql(table), column): f"{table}.{column}" for table, column in in_sqlite}
    assert sorted(named[each] for each in named.keys() - in_postgresql) == sorted(schema.only_sqlite)
    assert sorted(".".join(each) for each in in_postgresql - named.keys()) == sorted(schema.only_postgresql)
