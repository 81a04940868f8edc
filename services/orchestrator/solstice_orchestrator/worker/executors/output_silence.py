"""Measure for how long a job has written nothing."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OutputSilence:
    """The time since a job's last output, or since this was made.

    Time in which the log is slow to take output does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, begun: bool = True) -> None:
        self._clock = clock
        self._since: float | None = clock() if begun else None

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Wrap the passing on of output: silence ends, and begins again afterwards."""
        self._since = None
        try:
            yield
        finally:
            self._since = self._clock()

    async def lasts(self, seconds: float) -> None:
        """Return once nothing has been written for so long; with 0, never return.

        Before silence has begun, check that as often.
        """
        if seconds <= 0:
            await asyncio.Event().wait()
        while (left := self._left(seconds)) > 0:  # noqa: ASYNC110  it is time that we wait for
            await asyncio.sleep(left)

    def _left(self, seconds: float) -> float:
        return seconds if self._since is None else self._since + seconds - self._clock()
