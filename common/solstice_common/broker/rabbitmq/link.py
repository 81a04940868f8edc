"""Keeps one connection to RabbitMQ, and renews it whenever it is lost."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from solstice_common.broker.rabbitmq.wire import LEAST_FRAME_BYTES, LinkLost, Wire, open_wire
from solstice_common.errors import BrokerUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

CONNECT_SECONDS: Final = 10.0
BACKOFF_BASE_SECONDS: Final = 0.2
BACKOFF_CAP_SECONDS: Final = 10.0
STABLE_SECONDS: Final = 2.0
"""Seconds after which a connection counts as good: the next backoff begins anew."""
PARTING_SECONDS: Final = 6.0

log = structlog.get_logger(__name__)


class Link:
    """One supervised connection; `prepare` makes a new one ready before its first use."""

    def __init__(
        self,
        url: str,
        *,
        shown_url: str,
        name: str,
        prepare: Callable[[Wire], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._url = url
        self._shown_url = shown_url
        self._name = name
        self._prepare = prepare
        self._rng = rng
        self._wire: Wire | None = None
        self._up = asyncio.Event()
        self._connected_at = math.inf
        self.detail = "not connected yet"
        """Why there is no connection, when there is none."""

    @property
    def wire(self) -> Wire | None:
        """The connection, when there is one."""
        return self._wire

    @property
    def header_bytes(self) -> int:
        """The largest content header that the broker takes. AMQP's minimum while there is no connection."""
        return LEAST_FRAME_BYTES if self._wire is None else self._wire.header_bytes

    async def connected(self) -> Wire:
        """Wait for a connection, without a limit."""
        while self._wire is None:
            await self._up.wait()
        return self._wire

    async def connected_within(self, timeout_seconds: float) -> Wire:
        """Wait for a connection; BrokerUnavailable when that takes longer than the limit."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.connected()
        except TimeoutError:
            raise BrokerUnavailable(self._shown_url, self.detail) from None

    async def run(self) -> None:
        """Connect, wait until the link is lost, and again, for ever."""
        failures = 0
        while True:
            self._connected_at = math.inf
            try:
                await self._one_connection()
            except LinkLost as lost:
                self.detail = str(lost)
            if time.monotonic() - self._connected_at > STABLE_SECONDS:
                failures = 0
            pause = backoff_seconds(
                failures,
                rng=self._rng,
                base_seconds=BACKOFF_BASE_SECONDS,
                cap_seconds=BACKOFF_CAP_SECONDS,
            )
            log.warning(
                LogEvent.BROKER_DISCONNECTED,
                url=self._shown_url,
                connection=self._name,
                detail=self.detail,
                retry_in=round(pause, 2),
            )
            failures += 1
            await asyncio.sleep(pause)

    async def _one_connection(self) -> None:
        wire = await open_wire(self._url, self._name, timeout_seconds=CONNECT_SECONDS)
        try:
            await self._prepare(wire)
            self._wire = wire
            self._connected_at = time.monotonic()
            self._up.set()
            log.info(LogEvent.BROKER_CONNECTED, url=self._shown_url, connection=self._name)
            raise LinkLost(await wire.ended())
        finally:
            self._wire = None
            self._up.clear()
            await wire.close_wire()


@asynccontextmanager
async def background(works: Mapping[str, Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run endless tasks beside the body; leaving ends them within a few seconds.

    Not a TaskGroup: that would wrap every error of the body in a group. An error of a task itself is a bug of ours; it
    is logged when it happens and raised on leaving.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    for task in tasks:
        task.add_done_callback(_log_crash)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=PARTING_SECONDS)
        for task in done:
            if not task.cancelled():
                task.result()


def _log_crash(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error(LogEvent.TASK_CRASHED, task=task.get_name(), exc_info=error)
