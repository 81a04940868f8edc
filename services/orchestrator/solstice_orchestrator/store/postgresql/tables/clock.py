"""Estimates the database's clock from the times that this process has read."""

import time
from typing import Final

ESTIMATE_SECONDS: Final = 60.0
"""For this long two clocks differ only by milliseconds."""


class EstimatedClock:
    """An estimate of the database's time, without a query.

    A decision that uses it lets the database check the time.
    """

    def __init__(self) -> None:
        self._database_time, self._at = 0.0, -ESTIMATE_SECONDS

    def hear(self, now: float) -> None:
        """Record a time that the database gave, in seconds since the epoch.

        The time may be a while ago, if the answer was slow.
        """
        known = self.now()
        if known is None or now > known:
            self._database_time, self._at = now, time.monotonic()

    def now(self) -> float | None:
        """Return the estimate; None when no time was recorded for too long.

        It is not before any recorded time, and not after what the database would say.
        """
        since = time.monotonic() - self._at
        return self._database_time + since if since < ESTIMATE_SECONDS else None
