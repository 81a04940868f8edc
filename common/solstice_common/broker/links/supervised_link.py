"""Keeps one connection to a broker, and makes a new one whenever it is lost."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

import structlog

from solstice_common.addresses.hosts import Host, HostChoice, HostRound
from solstice_common.errors import BrokerUnavailable, ConfigurationError
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.telemetry.log_events import LogEvent

CONNECT_SECONDS: Final = 10.0
BACKOFF_BASE_SECONDS: Final = 0.2
BACKOFF_CAP_SECONDS: Final = 10.0
STABLE_SECONDS: Final = 2.0
"""Seconds after which a connection counts as good: the next backoff starts from its base."""

log = structlog.get_logger(__name__)


class ConnectionLost(Exception):
    """The connection is lost, or the broker does not answer; the text says why."""

    def at(self, url: str, detail: str = "") -> BrokerUnavailable:
        """Return the error of a broker's method that this ended.

        `detail` is what is known beside it.
        """
        return BrokerUnavailable(url, detail or str(self))

    def log(self, operation: str) -> None:
        """Log what an operator has to grant; of a lost link, nothing."""


class BrokerConnection(Protocol):
    """One connection, which never comes back once it is lost."""

    @property
    def ended(self) -> "asyncio.Future[str]":
        """Done, with the reason, when the connection is lost."""
        ...


C = TypeVar("C", bound=BrokerConnection)
OpenConnection = Callable[[Host, str], AbstractAsyncContextManager[C]]
"""Connects to a host under a name that it shows; leaving closes. Raises ConnectionLost."""


@asynccontextmanager
async def open_at_any(
    hosts: Sequence[Host], open_connection: OpenConnection[C], name: str
) -> AsyncIterator[C]:
    """Connect to the first host that accepts it; ConnectionLost says why none does."""
    tried = HostRound(HostChoice(hosts))
    async with AsyncExitStack() as stack:
        for number, host in enumerate(hosts, start=1):
            try:
                connection = await stack.enter_async_context(open_connection(host, name))
                break
            except ConnectionLost as lost:
                why = tried.failed(host, str(lost))
                if number == len(hosts):
                    lost.args = (why,)
                    raise
        yield connection


class SupervisedLink(Generic[C]):
    """One supervised connection; `prepare` makes a new one ready before its first use."""

    def __init__(
        self,
        open_connection: OpenConnection[C],
        *,
        hosts: HostChoice,
        shown_url: str,
        name: str,
        prepare: Callable[[C], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._open_connection = open_connection
        self._hosts = hosts
        self._shown_url = shown_url
        self._name = name
        self._prepare = prepare
        self._rng = rng
        self._connection: C | None = None
        self._up = asyncio.Event()
        self._connected_at = math.inf
        self.host = ""
        """The host of the last connection, as `name:port`."""
        self._lost = ConnectionLost()
        self.detail = "not connected yet"
        """The reason while there is no connection."""

    @property
    def connection(self) -> C | None:
        """The connection, when there is one."""
        return None if self._connection is None or self._connection.ended.done() else self._connection

    async def connected(self) -> C:
        """Wait for a connection, without a limit."""
        while (connection := self.connection) is None:
            # The connection may have ended before `run` noticed.
            self._up.clear()
            await self._up.wait()
        return connection

    async def connected_within(self, timeout_seconds: float) -> C:
        """Wait for a connection; BrokerUnavailable when that takes longer than the limit."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.connected()
        except TimeoutError:
            raise self._lost.at(self._shown_url, self.detail) from None

    async def run(self) -> None:
        """Connect, wait until the connection is lost, and connect again, until cancelled."""
        failures, tried, why = 0, HostRound(self._hosts), ""
        while True:
            self._connected_at = math.inf
            host = self._hosts.current
            try:
                await self._one_connection(host)
            except ConnectionLost as lost:
                why, self._lost = str(lost), lost
                lost.log("connecting")
            except ConfigurationError as wrong:
                why, self._lost = str(wrong), ConnectionLost()
            except Exception as mistake:
                # A bug; without this handler, there would never be a connection again.
                why = f"an internal error: {mistake}"
                log.exception(LogEvent.TASK_CRASHED, task=self._name)
            if time.monotonic() - self._connected_at > STABLE_SECONDS:
                failures = 0
                tried.begin()
            self.detail = tried.failed(host, why)
            pause = 0.0
            if tried.is_over:
                pause = backoff_seconds(
                    failures,
                    rng=self._rng,
                    base_seconds=BACKOFF_BASE_SECONDS,
                    cap_seconds=BACKOFF_CAP_SECONDS,
                )
                failures += 1
            log.warning(
                LogEvent.BROKER_DISCONNECTED,
                url=self._shown_url,
                connection=self._name,
                host=str(host),
                detail=why,
                retry_in=round(pause, 2),
            )
            await asyncio.sleep(pause)

    async def _one_connection(self, host: Host) -> None:
        async with self._open_connection(host, self._name) as connection:
            await self._prepare(connection)
            self.host = str(host)
            self._connection = connection
            self._connected_at = time.monotonic()
            self._up.set()
            log.info(LogEvent.BROKER_CONNECTED, url=self._shown_url, connection=self._name, host=self.host)
            try:
                await asyncio.wait([connection.ended])
                raise ConnectionLost(connection.ended.result())
            finally:
                self._connection = None
