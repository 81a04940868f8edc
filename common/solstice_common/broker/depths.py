"""Reads the depths of queues."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from solstice_common.broker.protocol import Broker, QueueDepth
from solstice_common.errors import BrokerUnavailable

ASK_SECONDS: Final = 2.0
"""The longest wait for all answers: a scrape of the metrics must not wait for a broker that hangs."""


async def depths_of(broker: Broker, queues: Iterable[str]) -> Mapping[str, QueueDepth]:
    """Return the depth of each queue by name, where the broker can be asked now."""
    depths: dict[str, QueueDepth] = {}
    try:
        async with asyncio.timeout(ASK_SECONDS):
            for queue in queues:
                depth = await broker.depth(queue)
                if depth is not None:
                    depths[queue] = depth
    except (BrokerUnavailable, TimeoutError):
        return depths
    return depths


async def depth_if_there(broker: Broker, queue: str) -> QueueDepth | None:
    """Return the depth of a queue that may not exist.

    None also where this user may not ask for it. BrokerUnavailable without a connection.
    """
    try:
        return await broker.depth(queue)
    except BrokerUnavailable:
        if not broker.health.connected:
            raise
        return None
