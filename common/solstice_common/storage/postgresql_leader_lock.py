"""Elects a leader: one process holds a PostgreSQL advisory lock on its own connection.

Source: postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS, .../runtime-config-client.html.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from solstice_common.errors import ConfigurationError, StoreError
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.storage.postgresql import CONNECTION_ERRORS, connected

if TYPE_CHECKING:
    import asyncpg

POLL_SECONDS: Final = 1.0
SPEAK_SECONDS: Final = 10.0
"""Seconds between the statements by which the holder keeps its session."""
IDLE_SECONDS: Final = 45
ANSWER_SECONDS: Final = 10.0
RETRY_BASE_SECONDS: Final = 0.1
RETRY_CAP_SECONDS: Final = 2.0


class LeaderLock:
    """One of several processes that are in `hold` has `acquired` set."""

    def __init__(self, url: str, on_acquired: Callable[[], None], *, lock: int) -> None:
        """Call `on_acquired` each time the lock is acquired.

        `lock` is a number that its user chooses, the same in every version; locks are per database.
        """
        self.acquired = asyncio.Event()
        self._is_leading = False
        self._url = url
        self._on_acquired = on_acquired
        self._lock = lock
        self._rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311  jitter is no secret

    @property
    def is_lost(self) -> bool:
        """Whether this process leads, except for a connection that it has lost."""
        return self._is_leading and not self.acquired.is_set()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for the lock, hold it, and take it again whenever it was lost."""
        keeping = asyncio.create_task(self._keep(), name="leader-lock")
        waiting = asyncio.create_task(self.acquired.wait(), name="leader-lock-wait")
        try:
            await asyncio.wait({keeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
            self._is_leading = True
            yield
        finally:
            self._is_leading = False
            for task in (waiting, keeping):
                task.cancel()
            await asyncio.gather(waiting, keeping, return_exceptions=True)
            self.acquired.clear()

    async def _keep(self) -> None:
        failures = 0
        while True:
            with contextlib.suppress(StoreError, ConfigurationError, *CONNECTION_ERRORS):
                async with connected(self._url) as connection:
                    await self._watch(connection)
            failures = 1 if self.acquired.is_set() else failures + 1
            self.acquired.clear()
            await asyncio.sleep(
                backoff_seconds(
                    failures, rng=self._rng, base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS
                )
            )

    async def _watch(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Hold the lock until the connection is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.execute(f"SET idle_session_timeout = '{IDLE_SECONDS}s'", timeout=ANSWER_SECONDS)
        while not await connection.fetchval(  # noqa: ASYNC110  another process's lock sends no notification
            "SELECT pg_try_advisory_lock($1)", self._lock, timeout=ANSWER_SECONDS
        ):
            await asyncio.sleep(POLL_SECONDS)
        self.acquired.set()
        self._on_acquired()
        while not lost.is_set():
            try:
                async with asyncio.timeout(SPEAK_SECONDS):
                    await lost.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=ANSWER_SECONDS)
