"""How much of a connection or request is taken, and what is said to more. Pure."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

from solstice_common.values import Value

HEAD_BYTES: Final = 64 * 1024
"""Of a request's head, and again of its trailers."""
FIELDS: Final = 100
"""Of head and trailers together."""
URL_BYTES: Final = 8 * 1024
WAITING_REQUESTS: Final = 16
"""Requests that one connection may have sent ahead of their answers."""
LINGER_SECONDS: Final = 0.5
"""How long the rest of a request is read and dropped after the last answer, so that the client can read that answer."""
LINGER_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 20
"""What surrounds a chunk: its size, its line ends."""
_FREE_CHUNKS: Final = 1024
_LEAST_CHUNK: Final = 64
_LEAST_SPARE: Final = 64
_ONCE: Final = re.compile(
    rb"authorization|content-length|content-type|expect|host|idempotency-key|origin|transfer-encoding"
    rb"|webhook-(id|timestamp|signature)|x-(hub|github|gitlab|gitea|forgejo|gogs)-.*"
)

Field = tuple[bytes, bytes]
"""Name (in lower case) and value of a header."""


class Bounds(Value, frozen=True, kw_only=True):
    """The bounds of one server that its settings choose."""

    connections: int = 512
    head_seconds: float = 10.0
    """From the first byte of a head to its last."""
    silence_seconds: float = 15.0
    """Without a byte: on a new connection, within a body, from a client that should read our answer."""
    body_bytes: int = 32 * 1024 * 1024
    """Of all bodies together, from their arrival to the end of their request."""


class Refusal(Value, frozen=True):
    """What the protocol itself answers, before it closes the connection."""

    status: int
    reason: str
    """One word of a closed list."""
    detail: str
    retry_after: int = 0

    def encoded(self, further: Iterable[Field] = ()) -> bytes:
        """The whole answer (RFC 9112, section 2.1)."""
        body = f"{self.detail}\n".encode()
        fields = [
            *further,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if self.retry_after:
            fields.append((b"retry-after", b"%d" % self.retry_after))
        head = b"HTTP/1.1 %d %b\r\n" % (self.status, HTTPStatus(self.status).phrase.encode())
        return head + b"".join([b"%b: %b\r\n" % field for field in fields]) + b"\r\n" + body


MALFORMED: Final = Refusal(400, "malformed_http", "Invalid HTTP request received.")
REPEATED: Final = Refusal(400, "repeated_header", "A header that may come only once came twice.")
TINY_CHUNKS: Final = Refusal(400, "tiny_chunks", "The body comes in too many tiny chunks: send larger ones.")
SLOW: Final = Refusal(408, "too_slow", "The request took too long to arrive: send it again.")
LONG_URL: Final = Refusal(414, "long_url", f"The address is longer than {URL_BYTES} bytes.")
LARGE_HEAD: Final = Refusal(
    431, "large_head", f"The header fields are more than {FIELDS}, or larger than {HEAD_BYTES} bytes."
)
PIPELINED: Final = Refusal(
    503, "pipelined", f"More than {WAITING_REQUESTS} requests were sent ahead of their answers.", 1
)
MANY_BODIES: Final = Refusal(
    503, "many_bodies", "The bodies under way are too large together: send it again later.", 10
)
MANY_CONNECTIONS: Final = Refusal(503, "many_connections", "Too many connections: try again later.", 10)
CROWDED_OUT: Final = "crowded_out"
"""The reason of a connection that was closed, without an answer, to make room for a new one."""
SILENT: Final = "silent"
"""The reason of a connection that sent or read nothing."""


def is_repeated(headers: Sequence[Field]) -> bool:
    """Whether a header is there twice that decides who sent this, what it is, or where it ends."""
    names = [name for name, _ in headers]
    if len(set(names)) == len(names):
        return False
    return any(names.count(name) > 1 for name in set(names) if _ONCE.fullmatch(name))


def framing_problem(*, received: int, body: int, chunks: int) -> Refusal | None:
    """What is wrong with so many bytes of a request, of which so many, in so many chunks, were its body."""
    if chunks > _FREE_CHUNKS + body // _LEAST_CHUNK:
        return TINY_CHUNKS
    if received - body > 2 * HEAD_BYTES + _CHUNK_BYTES * chunks:
        return LARGE_HEAD
    return None


def connections_allowed(asked: int, descriptors: int, *, servers: int = 1) -> int:
    """How many connections each server of a process may hold: a quarter of the descriptors is for everything else."""
    spare = max(_LEAST_SPARE, descriptors // 4)
    return max(1, min(asked, (descriptors - spare) // servers))
