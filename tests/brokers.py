"""Every kind of broker, for suites that run on each.

That is the embedded one (in a file; the contract suites run on that in memory, too), Redis, NATS and RabbitMQ. A module with `EVERY_VERSION` runs on each
available version of them.

A `conftest.py` that imports everything in `__all__` gives its tests `broker_kind` and `broker_url`, and `queue_type`, a type of
queues that the broker has.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from solstice_common.topology import QueueType
from tests.memory import memory_url
from tests.servers.nats_server import NatsServer
from tests.servers.rabbitmq import DEFAULT, RabbitMQServer, flavours
from tests.servers.redis_server import RedisServer
from tests.servers.versions import NATS, REDIS, nats_flavours, needs_every_version, redis_flavours

__all__ = ["broker_url", "pytest_generate_tests"]

EMBEDDED: Final = "embedded"
MEMORY: Final = "memory"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_brokers(metafunc, (EMBEDDED,))


def parametrize_brokers(metafunc: pytest.Metafunc, local: Sequence[str]) -> None:
    """Run a test with `broker_kind` on each kind.

    Of those without a server only on what `local` names.
    """
    if "broker_kind" in metafunc.fixturenames:
        # A module may name brokers that do not have what it tests yet.
        without = getattr(metafunc.module, "WITHOUT_BROKERS", ())
        every = (*redis_flavours()[0], *nats_flavours()[0], *flavours()[0])
        others = every if needs_every_version(metafunc.module) else (REDIS, NATS, DEFAULT)
        kinds = [kind for kind in (*local, *others) if kind not in without]
        names = {kind: "rabbitmq-default" if kind == DEFAULT else kind for kind in kinds}
        if "queue_type" in metafunc.fixturenames:
            # RabbitMQ alone has types of queues; others only remember the name.
            types = {kind: QueueType if kind in flavours()[0] else (QueueType.QUORUM,) for kind in kinds}
            pairs = [(kind, each) for kind in kinds for each in types[kind]]
            ids = [f"{each}-{names[kind]}" for kind, each in pairs]
            metafunc.parametrize(("broker_kind", "queue_type"), pairs, ids=ids, scope="session")
        else:
            metafunc.parametrize("broker_kind", kinds, ids=[*names.values()], scope="session")


@pytest.fixture
def broker_url(
    broker_kind: str,
    rabbitmq_servers: Callable[[str], RabbitMQServer],
    redis_servers: Callable[[str], RedisServer],
    nats_servers: Callable[[str], NatsServer],
    tmp_path: Path,
) -> Iterator[str]:
    """A broker that only this test uses."""
    if broker_kind == EMBEDDED:
        yield f"sqlite:///{tmp_path / 'broker.db'}"
    elif broker_kind == MEMORY:
        with memory_url() as url:
            yield url
    elif broker_kind in redis_flavours()[0]:
        yield redis_servers(broker_kind).fresh_url()
    elif broker_kind in nats_flavours()[0]:
        yield nats_servers(broker_kind).fresh_url()
    else:
        with rabbitmq_servers(broker_kind).vhost() as vhost:
            yield vhost.url
