"""A broker of each kind, with the topology of the orchestrator."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from solstice_common.broker import Broker, open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route, full_topology, jobs_route

from tests.servers.rabbitmq import RabbitMQServer, flavours

EMBEDDED = "embedded"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_kind" in metafunc.fixturenames:
        kinds = [EMBEDDED, *flavours()[0]]
        metafunc.parametrize("broker_kind", kinds, scope="session")


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
def broker_settings(broker_url: str) -> BrokerSettings:
    return BrokerSettings(amqp_url=broker_url)


@pytest.fixture
def jobs(broker_settings: BrokerSettings) -> Route:
    return jobs_route(broker_settings)


@pytest.fixture
async def broker(broker_settings: BrokerSettings) -> AsyncIterator[Broker]:
    """Connected, with everything declared."""
    async with open_broker(broker_settings.amqp_url, name="test") as opened:
        await opened.ready(30)
        await opened.declare(full_topology(broker_settings))
        yield opened
