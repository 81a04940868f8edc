"""A broker and a job store of every kind, and connections to them."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.topology import QueueType, Route, Topology
from solstice_orchestrator.store import JobStore, open_store
from tests.brokers import EMBEDDED, MEMORY, broker_url, parametrize_brokers
from tests.memory import memory_store_url, memory_url
from tests.servers.podman import IMAGE, SERVER, PodmanStore, podman_store
from tests.servers.postgresql import ScratchDatabase
from tests.servers.vm_image import vm_image, why_no_vm
from tests.stores import LEASE, ManualClock, OpenStore, sqlite_store

__all__ = ["broker_url"]

OpenBroker = Callable[[str], AbstractAsyncContextManager[Broker]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_brokers(metafunc, (EMBEDDED, MEMORY))


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


DATABASES = ["sqlite", "memory", "postgresql"]


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a job store that only this test uses."""
    with _database_url(request, sqlite_store(tmp_path), memory_store_url(), "store_database") as url:
        yield url


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that only this test uses, without any schema."""
    with _database_url(
        request, f"sqlite:///{tmp_path / 'empty.db'}", memory_url(), "postgresql_database"
    ) as url:
        yield url


@contextmanager
def _database_url(
    request: pytest.FixtureRequest, file: str, memory: AbstractContextManager[str], server_fixture: str
) -> Iterator[str]:
    if request.param == "memory":
        with memory as url:
            yield url
    elif request.param == "sqlite":
        yield file
    else:
        database: ScratchDatabase = request.getfixturevalue(server_fixture)
        yield database.url


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


@pytest.fixture(scope="session")
def image_of_vms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On Debian as root it is made, so that CI runs this.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    return vm_image(tmp_path_factory.mktemp("vm") / "image")


@pytest.fixture(scope="session")
def podman_of_guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
    """A podman with the images of jobs and services alone: an import takes long there."""
    with podman_store(tmp_path_factory.mktemp("podman") / "store", (IMAGE, SERVER)) as store:
        yield store
