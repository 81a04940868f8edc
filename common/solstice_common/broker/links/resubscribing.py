"""Subscribes to one queue again after every loss of the connection or the queue."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import structlog

from solstice_common.broker.links.declared_topologies import DeclaredTopologies
from solstice_common.broker.links.missing_rights import CONSUMING, RightRefused
from solstice_common.broker.links.supervised_link import BrokerConnection, ConnectionLost, SupervisedLink
from solstice_common.errors import TopologyMismatch
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

BACKOFF_BASE_SECONDS: Final = 0.2
BACKOFF_CAP_SECONDS: Final = 5.0
REDECLARE_SECONDS: Final = 3.0
"""Seconds before a missing queue is declared again.

An operator who replaces it by another kind has that time.
"""

C = TypeVar("C", bound=BrokerConnection)
D = TypeVar("D")

log = structlog.get_logger(__name__)


class QueueMissing(Exception):
    """The queue does not exist at the moment."""


class SubscriptionEnded(Exception):
    """The broker ended a subscription or refused it; the text says why."""


class Resubscriber(Generic[C]):
    """The subscriptions of one consumer, one after the other; `run` must be running."""

    def __init__(
        self, link: SupervisedLink[C], declared: DeclaredTopologies[C], queue: str, *, rng: random.Random
    ) -> None:
        self._link = link
        self._declared = declared
        self._queue = queue
        self._rng = rng
        self._mismatch: TopologyMismatch | None = None
        self.arrived = asyncio.Event()
        """Set by the subscription when a delivery is ready."""

    async def batch(self, ready: Callable[[], deque[D]], most: int) -> list[D]:
        """Wait for ready deliveries and take up to `most`. Raises TopologyMismatch."""
        while not (deliveries := ready()):
            if self._mismatch is not None:
                raise self._mismatch
            self.arrived.clear()
            await self.arrived.wait()
        return [deliveries.popleft() for _ in range(min(len(deliveries), most))]

    async def run(
        self, subscribe: Callable[[C], Awaitable[None]], *, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """Call `subscribe`, and call it again when it ends, until `ended`.

        It may raise QueueMissing, TopologyMismatch, SubscriptionEnded and ConnectionLost.
        """
        failures, missing_since = 0, None
        while not ended():
            connection = await self._link.connected()
            began = time.monotonic()
            try:
                self._mismatch = self._declared.mismatch(self._queue)
                if self._mismatch is None:
                    await subscribe(connection)
            except TopologyMismatch as mismatch:
                self._mismatch = mismatch
            except QueueMissing:
                missing_since = missing_since or began
                log.warning(LogEvent.QUEUE_MISSING, queue=self._queue)
                if began - missing_since >= REDECLARE_SECONDS:
                    missing_since = None
                    await self._redeclare(connection)
            except (ConnectionLost, SubscriptionEnded) as lost:
                missing_since = None
                if not ended():
                    self._log_interrupted(lost)
            if self._mismatch is not None:
                self.arrived.set()  # for `batch` to raise it
            failures = 0 if time.monotonic() - began > BACKOFF_CAP_SECONDS else failures + 1
            if not ended():
                await asyncio.sleep(
                    backoff_seconds(
                        failures,
                        rng=self._rng,
                        base_seconds=BACKOFF_BASE_SECONDS,
                        cap_seconds=BACKOFF_CAP_SECONDS,
                    )
                )

    async def _redeclare(self, connection: C) -> None:
        try:
            await self._declared.again(connection)
        except ConnectionLost as lost:
            self._log_interrupted(lost)

    def _log_interrupted(self, why: ConnectionLost | SubscriptionEnded) -> None:
        if isinstance(why, RightRefused):
            why.log(CONSUMING)
        else:
            log.warning(LogEvent.CONSUMER_INTERRUPTED, queue=self._queue, detail=str(why))
