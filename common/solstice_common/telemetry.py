"""Trace context that travels with a request: made where it enters, continued at every stop.

Source: w3.org/TR/trace-context, version 00.
"""

import random
import re
from typing import Final

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")


def new_traceparent(rng: random.Random) -> str:
    """A trace of its own, marked as sampled: `00-<trace id>-<span id>-01`."""
    return f"00-{_identifier(rng, 16)}-{_identifier(rng, 8)}-01"


def child_of(traceparent: str | None, rng: random.Random) -> str:
    """A new span of the same trace; a new trace when there is none, or none that can be read."""
    parent = _TRACEPARENT.fullmatch(traceparent or "")
    if parent is None:
        return new_traceparent(rng)
    trace_id, flags = parent.groups()
    return f"00-{trace_id}-{_identifier(rng, 8)}-{flags}"


def _identifier(rng: random.Random, size: int) -> str:
    """Random hexadecimal digits for `size` bytes; all zeros would mean "none"."""
    return f"{rng.getrandbits(size * 8) or 1:0{size * 2}x}"
