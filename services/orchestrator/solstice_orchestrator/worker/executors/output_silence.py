"""For how long a job has written nothing."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OutputSilence:
    """Begins when it is made, and anew after each piece of output. Output that the log is slow to take is no silence."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = clock()

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Something was written, and is passed on meanwhile."""
        self._since = None
        try:
            yield
        finally:
            self._since = self._clock()

    async def lasts(self, seconds: float) -> None:
        """Returns once nothing has been written for so long; nothing is ever too long when that is 0."""
        if seconds <= 0:
            await asyncio.Event().wait()
        while (left := self._left(seconds)) > 0:  # noqa: ASYNC110  it is time that we wait for
            await asyncio.sleep(left)

    def _left(self, seconds: float) -> float:
        return seconds if self._since is None else self._since + seconds - self._clock()
