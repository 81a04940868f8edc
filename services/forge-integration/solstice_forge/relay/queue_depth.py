"""Polls how many requests wait in the jobs' queue.

While there are too many, API callers get 503 (shed).
"""

import asyncio
import random
from typing import Final

import structlog

from solstice_common.broker.protocol import Broker
from solstice_common.errors import BrokerUnavailable
from solstice_common.runtime.periodic import Sleep, periodic
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics

log = structlog.get_logger("solstice_forge.relay.queue_depth")

LOOK_SECONDS: Final = 1.0


class QueueDepth:
    """The number of requests waiting in the queue for an orchestrator.

    It is 0 while the broker is unavailable: the inbox fills then.
    """

    def __init__(self, broker: Broker, queue: str, metrics: Metrics) -> None:
        self._broker = broker
        self._queue = queue
        self._metrics = metrics
        self.count = 0

    async def look(self) -> None:
        """Ask the broker for the number."""
        try:
            depth = await self._broker.depth(self._queue)
        except BrokerUnavailable:
            depth = None
        self.count = 0 if depth is None else depth.ready
        self._metrics.queued(self.count)


async def run_queue_depth(
    queued: QueueDepth,
    *,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Poll about every LOOK_SECONDS until cancelled."""
    await periodic(
        queued.look,
        every_seconds=LOOK_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.QUEUE_DEPTH_UNKNOWN,
        first_after="nothing",
        sleep=sleep,
    )
