"""The exchanges, queues and bindings in the embedded broker's file."""

import asyncio
from pathlib import Path

from solstice_common.broker import open_broker
from solstice_common.broker.embedded.embedded_topology import found_topology
from solstice_common.broker.topology_check import FoundTopology, topology_differences
from solstice_common.topology import CANCELS, QueueType


async def test_what_was_declared_is_found_whole(tmp_path: Path) -> None:
    url, topology = f"sqlite:///{tmp_path / 'broker.db'}", CANCELS.topology(QueueType.QUORUM)
    async with open_broker(url, name="test") as broker:
        await broker.declare(topology)
        found = await found_topology(url)
    assert found.bindings == frozenset(topology.bindings)
    assert {name: exchange.kind for name, exchange in found.exchanges.items()} == {
        CANCELS.exchange: "direct",
        CANCELS.dlx: "fanout",
    }
    assert found.queues[CANCELS.queue].arguments == topology.queue(CANCELS.queue).arguments
    assert topology_differences(topology, found) == ()


def test_without_a_file_nothing_is_found_and_nothing_is_made(tmp_path: Path) -> None:
    found = asyncio.run(found_topology(f"sqlite:///{tmp_path / 'broker.db'}"))
    assert found == FoundTopology(exchanges={}, queues={}, bindings=frozenset())
    assert not list(tmp_path.iterdir())
