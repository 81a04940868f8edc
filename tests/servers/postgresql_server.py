"""What a test can ask of a PostgreSQL, whatever way it was found."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from tests.servers.server import Server

OLDEST: Final = 15
"""The oldest major version that Solstice CI promises to work on."""


class PostgreSQLServer(Server):
    """A PostgreSQL; its `stop` is that of an operator in a hurry, and closes every connection."""

    def __init__(self, url: str) -> None:
        self.admin_url = url
        """With user and password; the user may create databases."""

    @property
    def version(self) -> str:
        """Such as `15.14`."""
        return str(query(self.admin_url, "SHOW server_version")[0][0]).split()[0]

    def answers(self) -> bool:
        """Whether a query is answered."""
        with suppress(OSError, TimeoutError, asyncpg.PostgresError):
            return bool(query(self.admin_url, "SELECT 1"))
        return False

    def url(self, database: str) -> str:
        return urlsplit(self.admin_url)._replace(path=f"/{database}").geturl()

    @contextmanager
    def database(self) -> Iterator["ScratchDatabase"]:
        """An empty database that nobody else uses, dropped afterwards with whoever is still connected to it."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        query(self.admin_url, f'CREATE DATABASE "{name}" TEMPLATE template0')
        try:
            yield ScratchDatabase(server=self, url=self.url(name))
        finally:
            query(self.admin_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDatabase:
    """One test's own database."""

    server: PostgreSQLServer
    url: str

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.removeprefix("/")

    def query(self, sql: str, *arguments: object) -> list[Any]:
        """Run one statement on a connection of its own; its rows."""
        return query(self.url, sql, *arguments)

    def disconnect(self) -> int:
        """Close every connection to this database from the server's side; how many there were."""
        return len(
            self.server_query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", self.name
            )
        )

    def await_silence(self, seconds: float = 60.0) -> None:
        """Return once every session here has ended: what it did is in the server's statistics then."""
        deadline = time.monotonic() + seconds
        while self.server_query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'", self.name
        ):
            assert time.monotonic() < deadline

    def server_query(self, sql: str, *arguments: object) -> list[Any]:
        """Run one statement on the server's own database, so that this one is left alone."""
        return query(self.server.admin_url, sql, *arguments)


def query(url: str, sql: str, *arguments: object) -> list[Any]:
    """Ask once, from anywhere: also from within a running event loop, which has to wait for it."""

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url, timeout=10, command_timeout=60)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close(timeout=10)

    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(ask()))
        except BaseException as error:  # noqa: BLE001  it is raised again where it was asked for
            outcome.append(error)

    # A thread of its own, since the caller's may run an event loop already.
    thread = threading.Thread(target=run, name="query of a test")
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    found: list[Any] = outcome[0]
    return found
