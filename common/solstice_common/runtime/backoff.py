"""Computes how long to wait before the next attempt."""

import random


def backoff_seconds(failures: int, *, rng: random.Random, base_seconds: float, cap_seconds: float) -> float:
    """Exponential backoff with full jitter, in seconds.

    That is a random time between nothing and `base_seconds`, doubled with every failure, capped.

    `failures` counts those in a row before this one. The jitter keeps a crowd that lost the same server from coming
    back in step.
    """
    # 2**64 is beyond any cap; the bound keeps the power from growing without end.
    return rng.uniform(0.0, min(cap_seconds, base_seconds * 2.0 ** min(failures, 64)))
