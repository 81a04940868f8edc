"""Ids that sort by the time they were made.

UUID version 7 with a counter (RFC 9562, sections 5.7 and 6.2, method 1).
"""

import random
from collections.abc import Callable
from typing import Final

NewId = Callable[[float], str]
"""Makes the next id, given the time in seconds since the epoch."""

_COUNTER_LIMIT: Final = 1 << 12
_DIGITS: Final = tuple(f"{counter:03x}" for counter in range(_COUNTER_LIMIT))


def lowest_id(at: float) -> str:
    """Return a lower bound of all ids made from `at` on, and above earlier ids.

    `at` is in seconds since the epoch.
    """
    return f"{_beginning(max(0, int(at * 1000)))}-7000-8000-000000000000"


def id_source(rng: random.Random) -> NewId:
    """Return a source whose ids grow strictly, also when the clock steps back.

    The ids of one millisecond share their random bits, which tell them from those of other sources; the counter tells
    them from each other. The counter is in their last digits as well, because people name jobs by these.
    """
    following, counter = 0, _COUNTER_LIMIT - 1
    beginning, tail, salt = "", "", 0

    def new_id(now: float) -> str:
        nonlocal following, counter, beginning, tail, salt
        counter += 1
        at = now * 1000
        if at >= following or counter == _COUNTER_LIMIT:
            millisecond, counter = max(int(at), following), 0
            beginning, (tail, salt) = f"{_beginning(millisecond)}-7", _random(rng)
            following = millisecond + 1
        return f"{beginning}{_DIGITS[counter]}-{tail}{_DIGITS[counter ^ salt]}"

    return new_id


def _beginning(millisecond: int) -> str:
    digits = f"{millisecond:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _random(rng: random.Random) -> tuple[str, int]:
    """62 bits: 50 of them as digits behind the variant, the rest as a number."""
    digits = f"{2 << 50 | rng.getrandbits(50):013x}"
    return f"{digits[:4]}-{digits[4:]}", rng.getrandbits(12)
