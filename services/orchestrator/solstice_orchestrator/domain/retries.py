"""Whether a job is tried again after an infrastructure failure, and when. Pure."""

import random
from typing import Final

from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, Reason

RETRY_BASE_SECONDS: Final = 5.0
RETRY_CAP_SECONDS: Final = 300.0
UNCOUNTED_CAP_SECONDS: Final = 60.0


def next_retry(
    attempts_used: int, reason: Reason, rng: random.Random, *, base_seconds: float = RETRY_BASE_SECONDS
) -> float | None:
    """Return the seconds to wait after `attempts_used` counted attempts (at least one).

    None when no further attempt follows. Exponential backoff with full jitter: between nothing and twice the last
    ceiling, so that jobs that failed together do not return together.
    """
    if reason not in INFRASTRUCTURE or attempts_used >= MAX_ATTEMPTS:
        return None
    return rng.uniform(0.0, backoff_ceiling(attempts_used, base_seconds))


def uncounted_wait(tries: int, rng: random.Random, base_seconds: float = RETRY_BASE_SECONDS) -> float:
    """Seconds to wait after the latest of `tries` uncounted attempts; grows with their number."""
    return rng.uniform(0.5, 1.0) * backoff_ceiling(tries, base_seconds, UNCOUNTED_CAP_SECONDS)


def backoff_ceiling(failures: int, base_seconds: float, cap_seconds: float = RETRY_CAP_SECONDS) -> float:
    """Return the longest wait after that many failures in a row (at least one)."""
    # Bounded before it is raised: a float overflows after some thousand failures.
    return min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 64))
