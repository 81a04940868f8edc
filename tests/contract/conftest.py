"""Every broker that keeps the contract: the embedded one, and RabbitMQ in each flavour at hand."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from solstice_common.broker import Broker, open_broker
from solstice_common.topology import QueueType, Route, Topology

from tests.servers.rabbitmq import RabbitMQServer, flavours

EMBEDDED = "embedded"

OpenBroker = Callable[[str], AbstractAsyncContextManager[Broker]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_kind" in metafunc.fixturenames:
        kinds = [EMBEDDED, *flavours()[0]]
        names = [kind if kind.startswith(("embedded", "rabbitmq")) else f"rabbitmq-{kind}" for kind in kinds]
        metafunc.parametrize("broker_kind", kinds, ids=names, scope="session")


@pytest.fixture
def broker_url(
    broker_kind: str, rabbitmq_servers: Callable[[str], RabbitMQServer], tmp_path: Path
) -> Iterator[str]:
    """A broker that only this test sees."""
    if broker_kind == EMBEDDED:
        yield f"sqlite:///{tmp_path / 'broker.db'}"
    else:
        with rabbitmq_servers(broker_kind).vhost() as vhost:
            yield vhost.url


@pytest.fixture
def another(broker_url: str) -> OpenBroker:
    """Open a further connection to the same broker, under a name."""

    def connect(name: str) -> AbstractAsyncContextManager[Broker]:
        return open_broker(broker_url, name=name, confirm_timeout_seconds=20)

    return connect


@pytest.fixture
def route() -> Route:
    return Route(exchange="orders", queue="orders.v1", routing_key="order.v1", dlx="dead", dlq="dead.v1")


@pytest.fixture(params=list(QueueType), ids=str)
def topology(route: Route, request: pytest.FixtureRequest) -> Topology:
    """The route's topology, once for each queue type."""
    return route.topology(QueueType(request.param))


@pytest.fixture
async def broker(another: OpenBroker, route: Route) -> AsyncIterator[Broker]:
    """Connected, with the quorum topology of `route` declared."""
    async with another("contract") as opened:
        await opened.ready(30)
        await opened.declare(route.topology(QueueType.QUORUM))
        yield opened
