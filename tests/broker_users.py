"""A user of each kind of broker, whose password a test changes."""

import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.polling import WAIT_SECONDS
from tests.servers.nats_server import NatsServer
from tests.servers.rabbitmq import RabbitMQServer, Vhost
from tests.servers.redis_server import RedisServer
from tests.servers.versions import NATS, REDIS

__all__ = ["broker_user"]


class BrokerUser:
    """A user who may do everything; `.url` names it without its password."""

    def __init__(self, url: str, name: str) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.name = name
        self.url = parts._replace(netloc=f"{name}@{host}").geturl()

    @abstractmethod
    def change_password(self, password: str) -> None:
        """Give the user another password."""

    @abstractmethod
    def end_connections(self) -> None:
        """End those that it has; there must be some."""


class RabbitMQUser(BrokerUser):
    def __init__(self, vhost: Vhost, name: str) -> None:
        super().__init__(vhost.url, name)
        self._vhost = vhost

    def change_password(self, password: str) -> None:
        self._vhost.server.api("PUT", f"users/{self.name}", {"password": password, "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._vhost.api("PUT", "permissions", self.name, everything)

    def end_connections(self) -> None:
        until = time.monotonic() + WAIT_SECONDS
        # The management API learns of a connection a moment after it was made.
        while self._vhost.close_connections() == 0:
            assert time.monotonic() < until
            time.sleep(0.1)


class RedisUser(BrokerUser):
    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server.fresh_url(), name)
        self._server = server

    def change_password(self, password: str) -> None:
        with self._server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", self.name, "on", "resetpass", f">{password}", "~*", "+@all"
            )

    def end_connections(self) -> None:
        with self._server.client() as client:
            assert client.execute_command("CLIENT", "KILL", "USER", self.name)


class NatsUser(BrokerUser):
    def __init__(self, server: NatsServer, name: str) -> None:
        super().__init__(server.url, name)
        self._server = server

    def change_password(self, password: str) -> None:
        self._server.settings = [
            f'authorization {{ users: [ {{ user: "{self.name}", password: "{password}" }} ] }}'
        ]
        # It reads its users at the start.
        self._server.stop()
        self._server.start()

    def end_connections(self) -> None:
        """They ended with the change."""


@contextmanager
def _rabbitmq_user(server: RabbitMQServer, name: str) -> Iterator[BrokerUser]:
    with server.vhost() as vhost:
        try:
            yield RabbitMQUser(vhost, name)
        finally:
            server.api("DELETE", f"users/{name}")


@pytest.fixture
def broker_user(
    broker_kind: str,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_servers: Callable[[str], RedisServer],
) -> Iterator[BrokerUser]:
    """A user of a broker that only this test uses, with the password `first`."""
    name = f"otter-{uuid.uuid4().hex[:8]}"
    if broker_kind == REDIS:
        server = redis_servers(REDIS)
        user: BrokerUser = RedisUser(server, name)
        user.change_password("first")
        yield user
        with server.client() as client:
            client.execute_command("ACL", "DELUSER", name)
    elif broker_kind == NATS:
        with NatsServer() as nats:
            user = NatsUser(nats, name)
            user.change_password("first")
            yield user
    else:
        with _rabbitmq_user(rabbitmq_servers(broker_kind), name) as user:
            user.change_password("first")
            yield user
