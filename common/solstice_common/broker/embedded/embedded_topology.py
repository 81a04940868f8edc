"""Reads what is declared in the file of the embedded broker."""

import json
import sqlite3
from pathlib import Path

from solstice_common.broker.topology_check import FoundExchange, FoundQueue, FoundTopology
from solstice_common.storage.sqlite import SqliteDatabase, migrations_of
from solstice_common.storage.sqlite_place import sqlite_place
from solstice_common.topology import Binding


async def found_topology(url: str) -> FoundTopology:
    """Return everything declared in the file that `url` names; nothing where there is no file.

    Raises ConfigurationError for a wrong URL, StoreUnavailable when the file cannot be read, SchemaTooNew.
    """
    place = sqlite_place(url, "broker")
    if isinstance(place, Path) and not place.exists():
        return FoundTopology(exchanges={}, queues={}, bindings=frozenset())
    async with SqliteDatabase.open(
        place, migrations_of("solstice_common.broker.embedded.schema")
    ) as database:
        return await database.read(_declared)


def _declared(connection: sqlite3.Connection) -> FoundTopology:
    return FoundTopology(
        exchanges={
            name: FoundExchange(kind=kind)
            for name, kind in connection.execute("SELECT name, kind FROM exchanges")
        },
        queues={
            name: FoundQueue(arguments=json.loads(arguments))
            for name, arguments in connection.execute("SELECT name, arguments FROM queues")
        },
        bindings=frozenset(
            Binding(exchange=exchange, queue=queue, routing_key=key)
            for exchange, queue, key in connection.execute(
                "SELECT exchange, queues.name, routing_key FROM bindings JOIN queues USING (queue_id)"
            )
        ),
    )
