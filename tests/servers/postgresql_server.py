"""What a test can ask of any PostgreSQL."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from tests.servers.own_thread import run_in_thread
from tests.servers.server import Server

OLDEST: Final = 15
"""The oldest major version that Solstice CI promises to work on."""


class PostgreSQLServer(Server):
    """A PostgreSQL. Its `stop` is a fast shutdown, which closes every connection."""

    def __init__(self, url: str) -> None:
        self.admin_url = url
        """The URL with user and password; the user may create databases."""

    @property
    def version(self) -> str:
        """The version, such as `15.14`."""
        return str(query(self.admin_url, "SHOW server_version")[0][0]).split()[0]

    def answers(self) -> bool:
        """Whether it answers a query."""
        with suppress(OSError, TimeoutError, asyncpg.PostgresError):
            return bool(query(self.admin_url, "SELECT 1"))
        return False

    def url(self, database: str) -> str:
        return urlsplit(self.admin_url)._replace(path=f"/{database}").geturl()

    @contextmanager
    def database(self, template: str = "template0") -> Iterator["ScratchDatabase"]:
        """A database for one user alone, dropped afterwards with its connections.

        It is empty, or a copy of another one, to which nothing may be connected.
        """
        name = f"test_{uuid.uuid4().hex[:12]}"
        # A copy of the files takes half the time of a copy through the log.
        query(self.admin_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        try:
            yield ScratchDatabase(server=self, url=self.url(name))
        finally:
            query(self.admin_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDatabase:
    """The database of one test."""

    server: PostgreSQLServer
    url: str

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.removeprefix("/")

    def query(self, sql: str, *arguments: object) -> list[Any]:
        """Run one statement on a new connection; return its rows."""
        return query(self.url, sql, *arguments)

    def disconnect(self) -> int:
        """Close every connection to this database from the server's side; return how many."""
        return len(
            self.server_query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", self.name
            )
        )

    def await_silence(self, seconds: float = 60.0) -> None:
        """Return once every session here has ended. The server's statistics are complete then."""
        deadline = time.monotonic() + seconds
        while self.server_query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'", self.name
        ):
            assert time.monotonic() < deadline

    def server_query(self, sql: str, *arguments: object) -> list[Any]:
        """Run one statement on the server's own database, leaving this one alone."""
        return query(self.server.admin_url, sql, *arguments)


def query(url: str, sql: str, *arguments: object) -> list[Any]:
    """Run one query on a connection of its own.

    It works inside a running event loop too, which waits for it.
    """

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url, timeout=10, command_timeout=60)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close(timeout=10)

    return run_in_thread(ask())
