"""PostgreSQL from its official image, where a Docker daemon answers."""

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tests.servers.ports import free_ports
from tests.servers.postgresql_cluster import UNSYNCED
from tests.servers.postgresql_server import PostgreSQLServer

if TYPE_CHECKING:
    from docker.models.containers import Container  # type: ignore[import-untyped]  # it ships no types

IMAGE: Final = "postgres:17-alpine"
START_SECONDS: Final = 120.0


class PostgreSQLContainer(PostgreSQLServer):
    """A container of our own.

    The reaper of testcontainers ends it when the test run dies.
    """

    def __init__(self, *, synced: bool = False, settings: Mapping[str, str] | None = None) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415  slow, and only needed here

        # A fixed port, so that it stays the same when the container is stopped and started.
        (port,) = free_ports(1)
        password = secrets.token_hex(16)
        settings_given = {"max_connections": "200", **({} if synced else UNSYNCED), **(settings or {})}
        self._container = (
            DockerContainer(IMAGE)
            .with_bind_ports(5432, port)
            .with_env("POSTGRES_USER", "tester")
            .with_env("POSTGRES_PASSWORD", password)
            .with_env("POSTGRES_DB", "postgres")
            .with_command(["postgres", *(f"--{name}={value}" for name, value in settings_given.items())])
        )
        self._running: Container | None = None
        super().__init__(f"postgresql://tester:{password}@127.0.0.1:{port}/postgres")

    def start(self) -> None:
        if self._running is None:
            self._container.start()
            self._running = self._container.get_wrapped_container()
        else:
            self._running.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{IMAGE} did not start:\n{self._running.logs(tail=100).decode()}")
            time.sleep(0.1)

    def stop(self) -> None:
        # The image's STOPSIGNAL is SIGINT: PostgreSQL's fast shutdown.
        self._wrapped.stop(timeout=30)

    def kill(self) -> None:
        self._wrapped.kill()

    def close(self) -> None:
        self._container.stop()

    @property
    def _wrapped(self) -> "Container":
        if self._running is None:
            raise RuntimeError("the container was not started")
        return self._running
