"""Ids that sort by the moment they were made: UUID version 7 with a counter (RFC 9562, sections 5.7 and 6.2)."""

import random
from collections.abc import Callable
from typing import Final

NewId = Callable[[float], str]
"""Makes the next id, given the time in seconds since the epoch."""

_COUNTER_LIMIT: Final = 1 << 12


def id_source(rng: random.Random) -> NewId:
    """A source whose ids grow strictly, also within one millisecond and when the clock steps back."""
    last_millisecond, counter = 0, 0

    def new_id(now: float) -> str:
        nonlocal last_millisecond, counter
        millisecond = int(now * 1000)
        if millisecond > last_millisecond:
            last_millisecond, counter = millisecond, 0
        else:
            counter += 1
            if counter == _COUNTER_LIMIT:
                last_millisecond, counter = last_millisecond + 1, 0
        number = last_millisecond << 80 | 7 << 76 | counter << 64 | 2 << 62 | rng.getrandbits(62)
        digits = f"{number:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return new_id
