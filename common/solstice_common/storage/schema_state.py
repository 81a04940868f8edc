"""Reads which migrations a database has, and its clock; it changes nothing."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.errors import ConfigurationError, StoreUnavailable
from solstice_common.settings import sqlite_path
from solstice_common.storage.migrations import applied_to
from solstice_common.storage.sqlite_place import MemoryPlace, SqlitePlace

_VERSION_UNIT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedSchema:
    """What a database says of itself."""

    applied: Mapping[int, str]
    """The checksum of each migration that was applied; empty when it has no tables."""
    server: int | None = None
    """The major version of PostgreSQL."""
    now: float | None = None
    """The server's clock, in seconds since the epoch."""


async def applied_schema(url: str, *, applied: str = "schema_migrations") -> AppliedSchema:
    """Ask the database at `url`; `applied` is the table of its migrations in PostgreSQL.

    Raises ConfigurationError (also when there is no such file), StoreUnavailable.
    """
    if url.startswith("sqlite:"):
        with reading(sqlite_path(url)) as connection:
            return AppliedSchema(applied=applied_to(connection))
    # Imported late: a file needs no client library.
    from solstice_common.storage.postgresql import connected  # noqa: PLC0415
    from solstice_common.storage.postgresql_schema import applied_to as applied_to_server  # noqa: PLC0415

    async with connected(url) as connection:
        return AppliedSchema(
            applied=await applied_to_server(connection, applied),
            server=int(await connection.fetchval("SHOW server_version_num")) // _VERSION_UNIT,
            now=float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())")),
        )


def refuse_missing(path: Path) -> None:
    """ConfigurationError when there is no such file."""
    if not path.is_file():
        raise ConfigurationError(f"the database {path}: there is no such file")


@contextmanager
def reading(place: SqlitePlace) -> Iterator[sqlite3.Connection]:
    """Open a connection that can neither write nor create a file."""
    if isinstance(place, MemoryPlace):
        address = place.address
    else:
        refuse_missing(place)
        address = f"{place.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield connection
    except sqlite3.Error as error:
        raise StoreUnavailable(str(place), str(error)) from error
