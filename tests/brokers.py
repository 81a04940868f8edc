"""Every kind of broker, for suites that run on each.

That is the embedded one, Redis, NATS, and RabbitMQ in each available flavour.

A `conftest.py` that imports everything in `__all__` gives its tests `broker_kind` and `broker_url`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers.nats_server import NatsServer
from tests.servers.rabbitmq import RabbitMQServer, flavours
from tests.servers.redis_server import RedisServer

__all__ = ["broker_url", "pytest_generate_tests"]

EMBEDDED: Final = "embedded"
REDIS: Final = "redis"
NATS: Final = "nats"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_kind" in metafunc.fixturenames:
        # A module may name brokers that do not have what it tests yet.
        without = getattr(metafunc.module, "WITHOUT_BROKERS", ())
        kinds = [kind for kind in (EMBEDDED, REDIS, NATS, *flavours()[0]) if kind not in without]
        names = [
            kind if kind.startswith((EMBEDDED, REDIS, NATS, "rabbitmq")) else f"rabbitmq-{kind}"
            for kind in kinds
        ]
        metafunc.parametrize("broker_kind", kinds, ids=names, scope="session")


@pytest.fixture
def broker_url(
    broker_kind: str,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_server: Callable[[], RedisServer],
    tmp_path: Path,
) -> Iterator[str]:
    """A broker that only this test uses."""
    if broker_kind == EMBEDDED:
        yield f"sqlite:///{tmp_path / 'broker.db'}"
    elif broker_kind == REDIS:
        yield redis_server().fresh_url()
    elif broker_kind == NATS:
        with NatsServer() as server:
            yield server.url
    else:
        with rabbitmq_servers(broker_kind).vhost() as vhost:
            yield vhost.url
