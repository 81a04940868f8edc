"""A supervised link replaces a lost connection and says why none is there."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from solstice_common.addresses.hosts import Host, HostChoice
from solstice_common.broker.links import supervised_link
from solstice_common.broker.links.supervised_link import ConnectionLost, SupervisedLink
from solstice_common.errors import BrokerUnavailable, ConfigurationError

FIRST, SECOND = Host("one", 1), Host("two", 2)


class Connection:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_closed = False


class Server:
    """Gives connections and prepares them, unless it was given a reason not to."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.problems: list[Exception] = []
        self.dialled: list[Host] = []
        self.down: set[Host] = set()

    @asynccontextmanager
    async def connect(self, host: Host, name: str) -> AsyncIterator[Connection]:
        assert name == "here (publish)"
        self.dialled.append(host)
        if host in self.down:
            raise ConnectionLost("refused")
        self.connections.append(connection := Connection())
        try:
            yield connection
        finally:
            connection.is_closed = True

    async def prepare(self, connection: Connection) -> None:
        if self.problems:
            raise self.problems.pop(0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(supervised_link, "BACKOFF_CAP_SECONDS", 0.01)
    return Server()


@pytest.fixture
def link(server: Server) -> SupervisedLink[Connection]:
    return SupervisedLink(
        server.connect,
        hosts=HostChoice([FIRST, SECOND]),
        shown_url="amqp://shown",
        name="here (publish)",
        prepare=server.prepare,
        rng=random.Random(1),
    )


@pytest.fixture
async def running(link: SupervisedLink[Connection]) -> AsyncIterator[None]:
    task = asyncio.create_task(link.run())
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_lost_connection_is_closed_and_another_takes_its_place(
    link: SupervisedLink[Connection], server: Server, running: None
) -> None:
    first = await link.connected()
    first.ended.set_result("cut")
    second = await link.connected()
    assert second is not first
    assert [first.is_closed, second.is_closed] == [True, False]
    assert link.detail == "one:1: cut"
    assert (server.dialled, link.host) == ([FIRST, SECOND], "two:2")


async def test_a_connection_that_has_ended_is_not_given_out(
    link: SupervisedLink[Connection], running: None
) -> None:
    first = await link.connected()
    first.ended.set_result("cut")
    # The link's task has not run yet.
    assert not first.is_closed
    assert link.connection is None
    with pytest.raises(BrokerUnavailable):
        await link.connected_within(0)


@pytest.fixture(
    params=[ConnectionLost("not yet"), ConfigurationError("no such exchange")], ids=["lost", "configuration"]
)
def refusing(server: Server, request: pytest.FixtureRequest) -> None:
    server.problems = [request.param, request.param]


async def test_a_connection_that_cannot_be_prepared_is_tried_again(
    link: SupervisedLink[Connection], server: Server, refusing: None, running: None
) -> None:
    assert await link.connected() is server.connections[2]
    assert [each.is_closed for each in server.connections] == [True, True, False]


async def test_a_caller_learns_why_there_is_no_connection(link: SupervisedLink[Connection]) -> None:
    with pytest.raises(BrokerUnavailable) as raised:
        await link.connected_within(0.01)
    assert "amqp://shown" in str(raised.value)
    assert "not connected yet" in str(raised.value)


async def test_every_host_is_tried_before_a_pause_and_each_says_why(
    link: SupervisedLink[Connection], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.down = {FIRST, SECOND}
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            server.down = {FIRST}
        await sleep_as_ever(0)

    sleep_as_ever = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)
    task = asyncio.create_task(link.run())
    assert await link.connected() is server.connections[0]
    task.cancel()
    await asyncio.wait([task])
    assert server.dialled == [FIRST, SECOND] * 3
    # No pause before the second host, and one after each whole round.
    assert [pause > 0 for pause in pauses] == [False, True, False, True, False]
    # In the third round, too, the second is named: by then it had refused twice.
    assert link.detail == "one:1: refused; two:2: refused"


async def test_a_mistake_of_ours_costs_one_connection_and_is_logged(
    link: SupervisedLink[Connection], server: Server, running: None
) -> None:
    first = await link.connected()
    with capture_logs() as logged:
        server.problems.append(KeyError("declared"))
        first.ended.set_result("cut")
        last = await link.connected()
    _, spoiled, used = server.connections
    assert (spoiled.is_closed, used) == (True, last)
    assert "broker.task_crashed" in [event["event"] for event in logged]
