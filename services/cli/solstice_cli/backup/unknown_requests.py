"""Has the relay publish once more what a restored store does not know.

A message that the broker delivered after the backup is in no queue any more, and the restored store does not have its
run. Its request is still in the inbox. A request that the store knows after all is a duplicate there, without effect.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from solstice_cli.backup import sqlite_files
from solstice_cli.backup.parts import PartDatabase
from solstice_forge.inbox import republishing
from solstice_orchestrator.store.admin.known_requests import known_in_postgresql, known_in_sqlite

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]


async def mark_in_file(inbox: Path, store: PartDatabase, since: float) -> int:
    """Mark what arrived since and the store does not know; return how many."""
    with sqlite_files.changing(inbox) as connection:
        unknown = await _unknown(republishing.published_in_sqlite(connection, since), store)
        republishing.unpublish_in_sqlite(connection, unknown)
    return len(unknown)


async def mark_in_server(connection: "Connection", store: PartDatabase, since: float) -> int:
    """Do the same in the transaction of that connection."""
    unknown = await _unknown(await republishing.published_in_postgresql(connection, since), store)
    await republishing.unpublish_in_postgresql(connection, unknown)
    return len(unknown)


async def mark_in_living(inbox: PartDatabase, store: PartDatabase, since: float) -> int:
    """Do the same in an inbox that forge-integration may be using."""
    if not inbox.is_server:
        return await mark_in_file(inbox.path, store, since)
    from solstice_cli.backup.postgresql_tables import session  # noqa: PLC0415  files need no client library

    async with session(inbox.url) as connection, connection.transaction():
        return await mark_in_server(connection, store, since)


async def _unknown(published: Mapping[str, int], store: PartDatabase) -> Collection[int]:
    if store.is_server:
        from solstice_cli.backup.postgresql_tables import session  # noqa: PLC0415  as above

        async with session(store.url) as connection:
            known = await known_in_postgresql(connection, published)
    else:
        known = await asyncio.to_thread(_known_in_file, store.path, published)
    return [row for request_id, row in published.items() if request_id not in known]


def _known_in_file(path: Path, request_ids: Collection[str]) -> Collection[str]:
    # No service has started on a file that was just restored.
    with sqlite_files.immutable(path) as connection:
        return known_in_sqlite(connection, request_ids)
