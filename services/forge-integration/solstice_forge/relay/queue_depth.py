"""Polls how many requests wait in the jobs' queues.

While there are too many, API callers get 503 (shed).
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from solstice_common.broker import protocol
from solstice_common.broker.depths import depth_if_there
from solstice_common.broker.protocol import Broker
from solstice_common.errors import BrokerUnavailable
from solstice_common.runtime.periodic import Sleep, periodic
from solstice_common.settings import BrokerSettings
from solstice_common.topology import jobs_route, split_jobs_route
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 1.0
UNREAD_SECONDS: Final = 30.0
"""So long requests may lie in the queue of a class without a consumer before the operator is told."""


class PolledQueueDepth:
    """The number of requests waiting in all queues for an orchestrator.

    It is 0 while the broker is unavailable: the inbox fills then.
    """

    def __init__(
        self,
        broker: Broker,
        settings: BrokerSettings,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._clock = clock
        self._declared = frozenset(jobs_route(settings).weights)
        self._classes = frozenset(each.queue for each in split_jobs_route(settings).classes.values())
        self._queues = sorted(self._declared | self._classes)
        """Those to ask for: declared ones, and those that the first refresh found."""
        self._unread: dict[str, tuple[float, int]] = {}
        """Queues of classes that hold requests and have no consumer: since when, and how many."""
        self.count = 0

    @property
    def notices(self) -> Mapping[str, str]:
        """What `/readyz` tells the operator of requests that no orchestrator reads."""
        unread = [
            f"{queue} ({count})"
            for queue, (since, count) in self._unread.items()
            if self._clock() - since >= UNREAD_SECONDS
        ]
        if not unread:
            return {}
        return {
            "queues": f"no orchestrator reads {', '.join(unread)}: set AMQP_PRIORITIES=split for the orchestrators, or "
            "restart one, which takes what is there"
        }

    async def refresh(self) -> None:
        """Ask the broker for the number."""
        try:
            depths = {queue: await self._depth(queue) for queue in self._queues}
        except BrokerUnavailable:
            self._note({})
            return
        # A queue that does not exist is not asked for again: each time, RabbitMQ logs an error.
        self._queues = [
            queue for queue in self._queues if queue in self._declared or depths[queue] is not None
        ]
        self._note({queue: depth for queue, depth in depths.items() if depth is not None})

    async def _depth(self, queue: str) -> protocol.QueueDepth | None:
        if queue in self._declared:
            return await self._broker.depth(queue)
        return await depth_if_there(self._broker, queue)

    def _note(self, depths: Mapping[str, protocol.QueueDepth]) -> None:
        self.count = sum(depth.ready for depth in depths.values())
        self._metrics.queued(self.count)
        self._unread = {
            queue: (self._unread.get(queue, (self._clock(), 0))[0], depth.ready)
            for queue, depth in depths.items()
            if queue in self._classes and depth.ready and not depth.consumers
        }


async def run_queue_depth(
    queued: PolledQueueDepth,
    *,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Poll about every POLL_SECONDS until cancelled."""
    await periodic(
        queued.refresh,
        every_seconds=POLL_SECONDS,
        rng=rng,
        log=log,
        failed=LogEvent.QUEUE_DEPTH_UNKNOWN,
        first_after="nothing",
        sleep=sleep,
    )
