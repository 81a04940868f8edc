"""Tells which requests a store knows, in the connection of its caller; it only reads."""

import sqlite3
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from solstice_orchestrator.store.records.rows import key

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

_IN_POSTGRESQL: Final = (
    "SELECT request_key FROM requests WHERE request_key = ANY($1)"
    " UNION SELECT request_key FROM request_aliases WHERE request_key = ANY($1)"
)
_IN_SQLITE: Final = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE request_key = ?1)"
    " OR EXISTS (SELECT 1 FROM request_aliases WHERE request_key = ?1)"
)


def known_in_sqlite(connection: sqlite3.Connection, request_ids: Collection[str]) -> Collection[str]:
    """Return those of the ids that belong to a run."""
    return {each for each in request_ids if connection.execute(_IN_SQLITE, (key(each),)).fetchone()[0]}


async def known_in_postgresql(connection: "Connection", request_ids: Collection[str]) -> Collection[str]:
    """Return those of the ids that belong to a run."""
    ids = {key(each): each for each in request_ids}
    return {ids[row[0]] for row in await connection.fetch(_IN_POSTGRESQL, list(ids))}
