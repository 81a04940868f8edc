"""Names the trace of a request and the ids of its spans. Pure.

All ids follow from the request, so any process can name a span before it exists, and a process that repeats the work
of a killed one gives its spans the same ids.

The header is W3C Trace Context's `traceparent`, version 00 (w3.org/TR/trace-context).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from solstice_common.tracing.samplers import Sampler

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1
"""The flag's bit; all others are reserved."""
_TRACE_DIGITS: Final = 32
_SPAN_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a request, as its reader continues it."""

    trace_id: str
    parent_id: str | None
    """The span that asked for the reader's work; None when the trace begins here."""
    sampled: bool

    def span_id(self, *what: str | int) -> str:
        """Return the id of the span about `what`: a word, and ids."""
        return _digits(_SPAN_DIGITS, self.trace_id, *what)

    def traceparent(self, span_id: str) -> str:
        """Return the header by which its reader's spans become children of a span."""
        return f"00-{self.trace_id}-{span_id}-{int(self.sampled):02x}"


def trace_of(traceparent: str | None, request_id: str, sampler: Sampler) -> Trace:
    """Return the trace that `traceparent` continues; without a usable one, the request's own."""
    known = read_traceparent(traceparent)
    if known is None:
        trace_id = _digits(_TRACE_DIGITS, "trace", request_id)
        return Trace(trace_id, None, sampler.samples(trace_id, parent=None))
    return Trace(known.trace_id, known.parent_id, sampler.samples(known.trace_id, parent=known.sampled))


def read_traceparent(traceparent: str | None) -> Trace | None:
    """Return what the header says; None when it is missing, or no valid one."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    trace_id, parent_id, flags = found.groups()
    # Zeros alone are no id, as the specification says.
    if not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return Trace(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED))


def _digits(count: int, *parts: str | int) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:count]
