"""The database's clock, as this process has heard it."""

import time
from typing import Final

HEARD_SECONDS: Final = 60.0
"""For so long two clocks run alike, but for milliseconds."""


class HeardClock:
    """What the database's clock shows by now, without asking; who decides by it has the database look whether it does."""

    def __init__(self) -> None:
        self._heard, self._at = 0.0, -HEARD_SECONDS

    def hear(self, now: float) -> None:
        """The database has said that it is `now`, in seconds since the epoch: just now, or a while ago if somebody was slow."""
        known = self.now()
        if known is None or now > known:
            self._heard, self._at = now, time.monotonic()

    def now(self) -> float | None:
        """Not before anything that was heard, and not after what the database would say; None: not heard for too long."""
        since = time.monotonic() - self._at
        return self._heard + since if since < HEARD_SECONDS else None
