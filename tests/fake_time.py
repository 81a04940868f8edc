"""A fake clock that advances when nothing is left to do.

So hours of waiting take seconds, and every wait is as long as it was meant. Real sockets, databases and threads take
real time, during which this clock stands; so a busy machine makes a test slower and changes nothing that it sees. The
code under test gets a timer of this time:

    time = FakeTime()
    polls = time.timer()
    StatusReporter(..., clock=time, timer=polls.timeout)
    await time.advance_until(time.now + 600.0, idle=lambda: len(polls.waits) == 1)
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Final

from tests.polling import LONG_WAIT_SECONDS

QUIET_ITERATIONS: Final = 12
"""Iterations of the event loop without work, after which all tasks wait."""


class Wait:
    """A task that waits from `begun` until `due`, in seconds since the epoch."""

    def __init__(self, begun: float, due: float, timeout: asyncio.Timeout) -> None:
        self.begun = begun
        self.due = due
        self.expired = False
        self._timeout = timeout

    def expire(self) -> None:
        """End the wait."""
        self.expired = True
        self._timeout.reschedule(asyncio.get_running_loop().time())


class Timer:
    """The waits of one kind."""

    def __init__(self, time: "FakeTime") -> None:
        self.begun = 0
        """How often a task began to wait."""
        self._time = time
        self._waits: set[Wait] = set()

    @property
    def waits(self) -> AbstractSet[Wait]:
        return self._waits

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """As `asyncio.timeout`."""
        async with asyncio.timeout(None) as timeout:
            wait = Wait(self._time.now, self._time.now + seconds, timeout)
            self._waits.add(wait)
            self.begun += 1
            try:
                yield
            finally:
                self._waits.remove(wait)

    async def sleep(self, seconds: float) -> None:
        """As `asyncio.sleep`."""
        with contextlib.suppress(TimeoutError):
            async with self.timeout(seconds):
                await asyncio.Event().wait()


class FakeTime:
    """A clock; calling it returns the seconds since the epoch."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now
        self._timers: list[Timer] = []

    def __call__(self) -> float:
        return self.now

    def timer(self) -> Timer:
        """A timer of this clock."""
        timer = Timer(self)
        self._timers.append(timer)
        return timer

    async def advance_until(
        self, moment: float, *, idle: Callable[[], bool], unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Advance from one wait's end to the next, or until `unless`.

        The clock stands while not `idle`.
        """
        while True:
            await self.settle(idle)
            if unless():
                return
            due = min((wait.due for wait in self._waits()), default=math.inf)
            self.now = max(self.now, min(due, moment))
            if due > moment:
                return
            for wait in self._waits():
                if wait.due <= self.now:
                    wait.expire()

    async def settle(self, idle: Callable[[], bool]) -> None:
        """Wait until everything of this moment is done; it may take any real time."""
        late = time.monotonic() + LONG_WAIT_SECONDS
        quiet = 0
        while quiet < QUIET_ITERATIONS:
            before = self._begun()
            await asyncio.sleep(0)
            expired = any(wait.expired for wait in self._waits())
            quiet = quiet + 1 if not expired and idle() and before == self._begun() else 0
            if not quiet:
                assert time.monotonic() < late, f"never idle within {LONG_WAIT_SECONDS:g} s"
                await asyncio.sleep(0.001)

    def _begun(self) -> int:
        return sum(timer.begun for timer in self._timers)

    def _waits(self) -> list[Wait]:
        return [wait for timer in self._timers for wait in timer.waits]
