"""Every kind of broker, for suites that run on each.

That is the embedded one, and RabbitMQ in each available flavour.

A `conftest.py` that imports everything in `__all__` gives its tests `broker_kind` and `broker_url`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers.rabbitmq import RabbitMQServer, flavours

__all__ = ["broker_url", "pytest_generate_tests"]

EMBEDDED: Final = "embedded"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_kind" in metafunc.fixturenames:
        kinds = [EMBEDDED, *flavours()[0]]
        names = [kind if kind.startswith((EMBEDDED, "rabbitmq")) else f"rabbitmq-{kind}" for kind in kinds]
        metafunc.parametrize("broker_kind", kinds, ids=names, scope="session")


@pytest.fixture
def broker_url(
    broker_kind: str, rabbitmq_servers: Callable[[str], RabbitMQServer], tmp_path: Path
) -> Iterator[str]:
    """A broker that only this test uses."""
    if broker_kind == EMBEDDED:
        yield f"sqlite:///{tmp_path / 'broker.db'}"
    else:
        with rabbitmq_servers(broker_kind).vhost() as vhost:
            yield vhost.url
