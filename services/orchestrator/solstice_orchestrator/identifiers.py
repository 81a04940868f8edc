"""Ids that sort by the moment they were made: UUID version 7 with a counter (RFC 9562, sections 5.7 and 6.2)."""

import random
from collections.abc import Callable
from typing import Final

NewId = Callable[[float], str]
"""Makes the next id, given the time in seconds since the epoch."""

_COUNTER_LIMIT: Final = 1 << 12
_VARIANT: Final = 2 << 62
_LAST: Final = (1 << 48) - 1


def lowest_id(at: float) -> str:
    """Below every id that is made from that moment on, above those made before; seconds since the epoch."""
    return f"{_beginning(max(0, int(at * 1000)))}-7000-8000-000000000000"


def id_source(rng: random.Random) -> NewId:
    """A source whose ids grow strictly, also within one millisecond and when the clock steps back."""
    last_millisecond, counter, beginning = 0, 0, _beginning(0)

    def new_id(now: float) -> str:
        nonlocal last_millisecond, counter, beginning
        millisecond = int(now * 1000)
        if millisecond > last_millisecond:
            last_millisecond, counter, beginning = millisecond, 0, _beginning(millisecond)
        else:
            counter += 1
            if counter == _COUNTER_LIMIT:
                last_millisecond, counter = last_millisecond + 1, 0
                beginning = _beginning(last_millisecond)
        bits = _VARIANT | rng.getrandbits(62)
        return "%s-7%03x-%x-%012x" % (beginning, counter, bits >> 48, bits & _LAST)  # noqa: UP031  an f-string takes half as long again

    return new_id


def _beginning(millisecond: int) -> str:
    digits = f"{millisecond:012x}"
    return f"{digits[:8]}-{digits[8:]}"
