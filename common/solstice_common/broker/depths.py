"""Reads the depths of all queues of a topology."""

import asyncio
from collections.abc import Mapping
from typing import Final

from solstice_common.broker.protocol import Broker, QueueDepth
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Topology

ASK_SECONDS: Final = 2.0
"""The longest wait for all answers: a scrape of the metrics must not wait for a broker that hangs."""


async def depths_of(broker: Broker, topology: Topology) -> Mapping[str, QueueDepth]:
    """The depth of each queue by name, where the broker can be asked now."""
    depths: dict[str, QueueDepth] = {}
    try:
        async with asyncio.timeout(ASK_SECONDS):
            for queue in topology.queues:
                depth = await broker.depth(queue.name)
                if depth is not None:
                    depths[queue.name] = depth
    except (BrokerUnavailable, TimeoutError):
        return depths
    return depths
