"""The servers that a measurement may run on, and the plain client for each."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Protocol

import httpx2

from tests.bench import embedded_yardsticks, nats_yardsticks, redis_yardsticks, yardsticks
from tests.servers.nats_server import NatsServer
from tests.servers.redis_server import RedisServer
from tests.servers.scratch import scratch_folder

BROKERS: Final = ("rabbitmq", "redis", "nats", "embedded")


class BenchVhost(Protocol):
    """What one measurement has to itself."""

    @property
    def url(self) -> str: ...


class BenchServer(Protocol):
    """A running broker."""

    def vhost(self) -> AbstractContextManager[BenchVhost]: ...


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """The file of an embedded broker."""

    url: str


class BenchEmbedded:
    """The embedded broker needs no server: a fresh file, on a disk, is enough."""

    @contextmanager
    def vhost(self) -> Iterator[EmbeddedFile]:
        folder = scratch_folder("embedded", synced=True)
        try:
            yield EmbeddedFile(f"sqlite:///{folder / 'broker.db'}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class BenchRedis(RedisServer):
    """A Redis that syncs each reply to a disk, as in production."""

    def __init__(self) -> None:
        super().__init__(synced=True)

    @property
    def version(self) -> str:
        with self.client() as client:
            return str(client.info("server")["redis_version"])

    @contextmanager
    def vhost(self) -> Iterator["BenchRedis"]:
        """The server itself, emptied."""
        self.fresh_url()
        yield self


class BenchNats(NatsServer):
    """A NATS that syncs each message to a disk before it confirms, as in production."""

    def __init__(self) -> None:
        super().__init__(synced=True)

    @property
    def version(self) -> str:
        return str(httpx2.get(f"{self.monitor_url}/varz", trust_env=False).json()["version"])

    @contextmanager
    def vhost(self) -> Iterator["BenchNats"]:
        """The server itself, emptied."""
        self.stop()
        self.forget()
        self.start()
        yield self


def plain_client(url: str) -> ModuleType:
    """The yardsticks for the broker at `url`: `declare`, `publish`, `consume`."""
    if url.startswith("redis"):
        return redis_yardsticks
    if url.startswith("sqlite"):
        return embedded_yardsticks
    return nats_yardsticks if url.startswith("nats") else yardsticks


def round_of(server: BenchServer) -> int:
    """How many messages a round has, so that both measures take less than five minutes."""
    # It syncs each message.
    return 10_000 if isinstance(server, BenchNats) else 20_000


def goal_of(url: str) -> float | None:
    """The ratio to the plain client that the project aims at.

    None beside a bare table, which does far less.
    """
    return None if url.startswith("sqlite") else 1.0
