"""A broker's topologies are declared again, and changed objects are known by name."""

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.errors import TopologyMismatch
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, Topology, full_topology, jobs_route

JOBS = jobs_route(BrokerSettings())
TOPOLOGY = full_topology(BrokerSettings())


class ScriptedServer:
    """Accepts declarations, except those that differ or that it cannot answer."""

    def __init__(self) -> None:
        self.topologies: list[Topology] = []
        self.problem: Exception | None = None

    async def declare(self, connection: str, topology: Topology) -> None:
        assert connection == "connection"
        if self.problem is not None:
            raise self.problem
        self.topologies.append(topology)


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def declared(server: ScriptedServer) -> DeclaredTopologies[str]:
    return DeclaredTopologies(server.declare, log=structlog.get_logger("test"))


async def test_each_topology_is_declared_again_once(
    server: ScriptedServer, declared: DeclaredTopologies[str]
) -> None:
    await declared.declare("connection", TOPOLOGY)
    await declared.declare("connection", TOPOLOGY)
    server.topologies.clear()
    await declared.again("connection")
    assert server.topologies == [TOPOLOGY]
    assert declared.dead_letter_exchange(JOBS.queue) == JOBS.dlx
    assert declared.dead_letter_exchange("elsewhere") is None


async def test_what_was_refused_is_not_declared_again(
    server: ScriptedServer, declared: DeclaredTopologies[str]
) -> None:
    server.problem = TopologyMismatch("queue", JOBS.queue, {}, "x-max-length=5")
    with pytest.raises(TopologyMismatch):
        await declared.declare("connection", TOPOLOGY)
    await declared.again("connection")
    assert (list(declared.queues()), declared.first_mismatch) == ([], None)


async def test_a_changed_queue_is_known_until_it_is_declared_or_found_again(
    server: ScriptedServer, declared: DeclaredTopologies[str]
) -> None:
    await declared.declare("connection", TOPOLOGY)
    server.problem = TopologyMismatch("queue", JOBS.queue, {}, "x-max-length=5")
    with capture_logs() as logs:
        await declared.again("connection")
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("broker.topology_mismatched", "error")
    assert (line["kind"], line["name"], line["detail"]) == ("queue", JOBS.queue, "x-max-length=5")
    assert declared.mismatch(JOBS.queue) is server.problem
    assert declared.mismatch(STATUSES.queue) is None
    assert "x-max-length=5" in (declared.first_mismatch or "")
    server.problem = None
    await declared.declare("connection", TOPOLOGY)
    assert declared.mismatch(JOBS.queue) is None
    server.problem = TopologyMismatch("queue", JOBS.queue, {}, "x-max-length=5")
    await declared.again("connection")
    server.problem = None
    await declared.again("connection")
    assert declared.first_mismatch is None


async def test_a_lost_connection_is_raised_and_leaves_what_was_known(
    server: ScriptedServer, declared: DeclaredTopologies[str]
) -> None:
    await declared.declare("connection", TOPOLOGY)
    server.problem = ConnectionError("lost")
    with pytest.raises(ConnectionError):
        await declared.again("connection")
    assert declared.dead_letter_exchange(JOBS.queue) == JOBS.dlx
