"""Take what is left in the queues of priority classes while AMQP_PRIORITIES=one.

Publishers that split, or orchestrators that did, leave requests there. So the setting may be changed back, or on one
service after the other, in any order.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import structlog

from solstice_common.broker.depths import depth_if_there
from solstice_common.broker.protocol import Broker, QueueDepth
from solstice_common.errors import BrokerUnavailable, TopologyMismatch
from solstice_common.topology import QueueType, Route
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.stages.intake import Intake

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 5.0
"""Between two looks at an empty queue.

One that does not exist is not asked for again: each time, RabbitMQ logs an error.
"""
EMPTY_SECONDS: Final = 1.0
"""For so long a queue must have been empty before it is left."""
CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRequests:
    """Follows the queues of classes that exist when it begins, until each is deleted."""

    broker: Broker
    open_broker: Callable[[], AbstractAsyncContextManager[Broker]]
    """A connection of its own for taking: what it declares is declared again by none of the others."""
    intake: Callable[[Broker], Intake]
    queue_type: QueueType
    prefetch: int
    found: set[str]
    """Gets the names of the queues that exist, and of their dead-letter queues."""
    poll_seconds: float = field(default=POLL_SECONDS)

    async def run(self, routes: Iterable[Route]) -> None:
        """Take what is in the queues of these routes, until none exists."""
        async with asyncio.TaskGroup() as tasks:
            for route in routes:
                tasks.create_task(self._follow(route), name=f"requests left in {route.queue}")

    async def _follow(self, route: Route) -> None:
        try:
            while (depth := await self._depth(route)) is not None:
                self.found.update((route.queue, route.dlq))
                if depth.ready:
                    await self._take(route, depth.ready)
                await asyncio.sleep(self.poll_seconds)
        except TopologyMismatch as mismatch:
            log.warning(LogEvent.LEFT_REQUESTS_MISMATCHED, queue=route.queue, detail=str(mismatch))
        else:
            self.found.difference_update((route.queue, route.dlq))

    async def _depth(self, route: Route) -> QueueDepth | None:
        while True:
            try:
                await self.broker.ready(CONNECT_SECONDS)
                return await depth_if_there(self.broker, route.queue)
            except BrokerUnavailable:
                await asyncio.sleep(self.poll_seconds)

    async def _take(self, route: Route, ready: int) -> None:
        """Take requests until the queue is empty."""
        log.info(LogEvent.LEFT_REQUESTS_INTAKE_BEGUN, queue=route.queue, ready=ready)
        async with self.open_broker() as broker:
            intake = self.intake(broker)
            run = intake.run(route, route.topology(self.queue_type), prefetch=self.prefetch)
            taking = asyncio.create_task(run, name=f"intake of {route.queue}")
            try:
                await self._emptied(route, intake, taking)
            finally:
                taking.cancel()
                await asyncio.wait([taking])
        if not taking.cancelled():
            taking.result()

    async def _emptied(self, route: Route, intake: Intake, taking: "asyncio.Task[None]") -> None:
        """Return once two looks in a row saw nothing, or taking has failed."""
        empty = 0
        while empty < 2 and not taking.done():  # noqa: PLR2004  one look may fall between a message and the next
            await asyncio.wait([taking], timeout=EMPTY_SECONDS)
            depth = await self._depth(route)
            # Deliveries that wait for the store stay here: RabbitMQ counts each return toward the delivery limit.
            is_empty = (depth is None or not depth.ready) and not intake.under_way
            empty = empty + 1 if is_empty else 0
