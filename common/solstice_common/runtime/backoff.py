"""Computes how long to wait before the next attempt."""

import random


def backoff_seconds(failures: int, *, rng: random.Random, base_seconds: float, cap_seconds: float) -> float:
    """Exponential backoff with full jitter, in seconds.

    A random time between zero and `base_seconds`, doubled with every failure, up to the cap.

    `failures` counts the failures in a row before this one. The jitter keeps clients that lost the same
    server from returning at the same time.
    """
    # 2**64 is beyond any cap; without the bound, the power would grow without end.
    return rng.uniform(0.0, min(cap_seconds, base_seconds * 2.0 ** min(failures, 64)))
