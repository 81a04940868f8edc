"""A consumer renews its subscription after every end, and reports a changed queue."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.addresses.hosts import Host, HostChoice
from solstice_common.broker.links import resubscribing
from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.resubscribing import QueueMissing, Resubscriber, SubscriptionEnded
from solstice_common.broker.links.supervised_link import ConnectionLost, SupervisedLink
from solstice_common.errors import TopologyMismatch
from solstice_common.settings import BrokerSettings
from solstice_common.topology import Topology, full_topology, jobs_route
from tests.polling import wait_until

TOPOLOGY = full_topology(BrokerSettings())
QUEUE = jobs_route(BrokerSettings()).queue


class Connection:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Server:
    """One connection; its subscriptions end as told, and the last of them stays."""

    def __init__(self) -> None:
        self.ends: list[Exception] = []
        self.subscriptions = 0
        self.declarations = 0
        self.problem: Exception | None = None
        self.ready: deque[str] = deque()

    @asynccontextmanager
    async def connect(self, host: Host, name: str) -> AsyncIterator[Connection]:
        yield Connection()

    async def prepare(self, connection: Connection) -> None:
        """Nothing is needed."""

    async def declare(self, connection: Connection, topology: Topology) -> None:
        self.declarations += 1
        if self.problem is not None:
            raise self.problem

    async def subscribe(self, connection: Connection) -> None:
        self.subscriptions += 1
        if self.ends:
            raise self.ends.pop(0)
        await asyncio.Event().wait()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(resubscribing, "BACKOFF_CAP_SECONDS", 0.001)
    return Server()


@pytest.fixture
async def link(server: Server) -> AsyncIterator[SupervisedLink[Connection]]:
    link = SupervisedLink(
        server.connect,
        hosts=HostChoice([Host("one", 1)]),
        shown_url="amqp://shown",
        name="here",
        prepare=server.prepare,
        rng=random.Random(1),
    )
    task = asyncio.create_task(link.run())
    yield link
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def declared(server: Server, link: SupervisedLink[Connection]) -> DeclaredTopologies[Connection]:
    declared = DeclaredTopologies(server.declare, log=structlog.get_logger("test"))
    await declared.declare(await link.connected(), TOPOLOGY)
    return declared


@pytest.fixture
def resubscriber(
    server: Server, link: SupervisedLink[Connection], declared: DeclaredTopologies[Connection]
) -> Resubscriber[Connection]:
    return Resubscriber(link, declared, QUEUE, rng=random.Random(1))


@asynccontextmanager
async def running(resubscriber: Resubscriber[Connection], server: Server) -> AsyncIterator[None]:
    task = asyncio.create_task(resubscriber.run(server.subscribe))
    yield
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("end", [ConnectionLost("cut"), SubscriptionEnded("the leader is gone")])
async def test_a_subscription_that_ends_is_renewed_and_says_why(
    resubscriber: Resubscriber[Connection], server: Server, end: Exception
) -> None:
    server.ends = [end, end]
    with capture_logs() as logs:
        async with running(resubscriber, server):
            await wait_until(lambda: server.subscriptions == 3)
    assert [(each["event"], each["detail"]) for each in logs] == [
        ("consumer.interrupted", str(end)),
        ("consumer.interrupted", str(end)),
    ]


async def test_a_queue_that_stays_missing_is_declared_again_and_no_sooner(
    resubscriber: Resubscriber[Connection], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ends = [QueueMissing(QUEUE)] * 3
    async with running(resubscriber, server):
        await wait_until(lambda: server.subscriptions == 4)
        assert server.declarations == 1
    monkeypatch.setattr(resubscribing, "REDECLARE_SECONDS", 0.0)
    server.ends = [QueueMissing(QUEUE)]
    async with running(resubscriber, server):
        await wait_until(lambda: server.subscriptions == 6)
    assert server.declarations == 2


async def test_another_end_between_two_looks_makes_a_missing_queue_missing_again(
    resubscriber: Resubscriber[Connection], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubscribing, "REDECLARE_SECONDS", 0.05)
    server.ends = [QueueMissing(QUEUE), ConnectionLost("cut")] * 100
    async with running(resubscriber, server):
        await wait_until(lambda: server.subscriptions == 201)
    assert server.declarations == 1


async def test_a_connection_that_is_lost_while_declaring_is_no_end(
    resubscriber: Resubscriber[Connection], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubscribing, "REDECLARE_SECONDS", 0.0)
    server.ends, server.problem = [QueueMissing(QUEUE)], ConnectionLost("cut")
    async with running(resubscriber, server):
        await wait_until(lambda: server.subscriptions == 2)
    assert server.declarations == 2


async def test_callers_wait_for_deliveries_and_take_no_more_than_they_asked_for(
    resubscriber: Resubscriber[Connection], server: Server
) -> None:
    batch = asyncio.create_task(resubscriber.batch(lambda: server.ready, 2))
    await asyncio.sleep(0)
    assert not batch.done()
    server.ready.extend("abc")
    resubscriber.arrived.set()
    assert await batch == ["a", "b"]
    assert await resubscriber.batch(lambda: server.ready, 2) == ["c"]


@pytest.mark.parametrize("found_by", ["the subscription", "a declaration"])
async def test_callers_hear_of_a_queue_of_another_kind_until_it_is_right_again(
    resubscriber: Resubscriber[Connection],
    server: Server,
    link: SupervisedLink[Connection],
    declared: DeclaredTopologies[Connection],
    found_by: str,
) -> None:
    mismatch = TopologyMismatch("queue", QUEUE, {}, "x-max-length=5")
    if found_by == "a declaration":
        server.problem = mismatch
        await declared.again(await link.connected())
    else:
        server.ends = [mismatch] * 1000
    async with running(resubscriber, server):
        with pytest.raises(TopologyMismatch):
            await resubscriber.batch(lambda: server.ready, 1)
        server.ends.clear()
        server.problem = None
        await declared.again(await link.connected())
        await wait_until(lambda: server.subscriptions > 0 and not server.ends)
        server.ready.append("a")
        assert await resubscriber.batch(lambda: server.ready, 1) == ["a"]


async def test_it_returns_once_it_is_to_end_and_reports_no_interruption(
    resubscriber: Resubscriber[Connection], server: Server
) -> None:
    server.ends = [ConnectionLost("we left")]
    with capture_logs() as logs:
        await resubscriber.run(server.subscribe, ended=lambda: server.subscriptions == 1)
    assert (server.subscriptions, logs) == (1, [])
