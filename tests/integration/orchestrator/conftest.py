"""A broker of each kind with our topology, and a harness for process jobs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import Route, full_topology, jobs_route
from tests.brokers import broker_url, pytest_generate_tests
from tests.executor_harness import ExecutorHarness, open_harness
from tests.repositories import Repository

__all__ = ["broker_url", "pytest_generate_tests"]


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


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
async def harness(tmp_path: Path, repository: Repository) -> AsyncIterator[ExecutorHarness]:
    async with open_harness(tmp_path / "work", repository) as opened:
        yield opened
