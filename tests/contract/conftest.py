"""A broker and a job store of every kind, and connections to them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.topology import QueueType, Route, Topology
from solstice_orchestrator.store import JobStore, open_store
from tests.brokers import broker_url, pytest_generate_tests
from tests.stores import LEASE, ManualClock, OpenStore

__all__ = ["broker_url", "pytest_generate_tests"]

OpenBroker = Callable[[str], AbstractAsyncContextManager[Broker]]


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


@pytest.fixture
def clock() -> ManualClock:
    """The stores' clock, moved by hand."""
    return ManualClock()


@pytest.fixture
def opened(store_url: str, clock: ManualClock) -> OpenStore:
    """Open the test's store, with an operator's rules if given.

    A second call opens it as another orchestrator would.
    """
    return partial(open_store, store_url, clock=clock, lease_seconds=LEASE)


@pytest.fixture
async def store(opened: OpenStore) -> AsyncIterator[JobStore]:
    async with opened() as opened_store:
        yield opened_store
