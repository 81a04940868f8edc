"""The bounds on connections and requests. Pure."""

from typing import Final

from solstice_common.values.value import Value

HEAD_BYTES: Final = 64 * 1024
"""Bytes of a request's head, and again of its trailers."""
FIELDS: Final = 100
"""Fields of head and trailers together."""
URL_BYTES: Final = 8 * 1024
WAITING_REQUESTS: Final = 16
"""Requests that one connection may have sent ahead of their answers."""
LINGER_SECONDS: Final = 0.5
"""Seconds in which the rest of a request is read and dropped.

So the client can read our last answer.
"""
LINGER_BYTES: Final = 256 * 1024
_LEAST_SPARE: Final = 64


class Bounds(Value, frozen=True, kw_only=True):
    """The bounds of one server that its settings choose."""

    connections: int = 512
    head_seconds: float = 10.0
    """Seconds from the first byte of a head to its last."""
    silence_seconds: float = 15.0
    """Seconds without a byte before a connection is closed.

    The bound applies to a new connection, within a body, and while a client should read our answer.
    """
    body_bytes: int = 32 * 1024 * 1024
    """Bytes of all bodies together, from their arrival to the end of their request."""


def connections_allowed(requested: int, descriptors: int, *, servers: int = 1) -> int:
    """Return how many connections each server of a process may hold.

    A quarter of the descriptors stays free for everything else.
    """
    spare = max(_LEAST_SPARE, descriptors // 4)
    return max(1, min(requested, (descriptors - spare) // servers))
