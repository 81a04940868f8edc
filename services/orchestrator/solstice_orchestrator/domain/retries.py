"""When the world was wrong: how long to wait before the next attempt, or that there is none. Pure."""

import random
from typing import Final

from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, Reason

RETRY_BASE_SECONDS: Final = 5.0
RETRY_CAP_SECONDS: Final = 300.0
UNCOUNTED_CAP_SECONDS: Final = 60.0


def next_retry(
    attempts_used: int, reason: Reason, rng: random.Random, *, base_seconds: float = RETRY_BASE_SECONDS
) -> float | None:
    """Seconds to wait after `attempts_used` counted attempts (at least one); None when there is to be no other.

    Exponential with full jitter: anywhere between nothing and twice as much as the last time, so that a crowd that
    failed together does not come back together.
    """
    if reason not in INFRASTRUCTURE or attempts_used >= MAX_ATTEMPTS:
        return None
    return rng.uniform(0.0, backoff_ceiling(attempts_used, base_seconds))


def uncounted_wait(tries: int, rng: random.Random, base_seconds: float = RETRY_BASE_SECONDS) -> float:
    """Seconds to wait after the latest of `tries` that spent no attempt; longer the more there were."""
    return rng.uniform(0.5, 1.0) * backoff_ceiling(tries, base_seconds, UNCOUNTED_CAP_SECONDS)


def backoff_ceiling(failures: int, base_seconds: float, cap_seconds: float = RETRY_CAP_SECONDS) -> float:
    """The longest wait after that many failures in a row (at least one)."""
    # Bounded before it is raised: a float overflows after some thousand failures.
    return min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 64))
