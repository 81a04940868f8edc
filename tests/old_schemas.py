"""Fills stores as an older version left them, row by row."""

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from solstice_common.storage.migrations import Migration, migrations_of

if TYPE_CHECKING:
    import asyncpg


def migrations_before(dialect: str, since: int) -> tuple[tuple[Migration, ...], tuple[Migration, ...]]:
    """The migrations of the orchestrator's store before that one, and all migrations."""
    steps = migrations_of(f"solstice_orchestrator.store.schema.{dialect}")
    return tuple(step for step in steps if step.version < since), tuple(steps)


def insert_sqlite(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})",  # noqa: S608  our own names
        tuple(row.values()),
    )


async def insert_postgresql(
    connection: "asyncpg.Connection[asyncpg.Record]", table: str, row: Mapping[str, Any]
) -> None:
    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})",  # noqa: S608  our own names
        *row.values(),
    )
