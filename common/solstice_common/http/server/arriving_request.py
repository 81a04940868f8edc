"""A request that arrives, counted against the bounds of its size. Pure.

A whole request becomes a `CompleteRequest`.
"""

import re
from collections.abc import Sequence
from typing import Final

from solstice_common.http.server.bodies import Body
from solstice_common.http.server.bounds import FIELDS, HEAD_BYTES
from solstice_common.http.server.refusals import LARGE_HEAD, TINY_CHUNKS, Field, Refusal

_CHUNK_BYTES: Final = 20
"""Bytes around a chunk: its size and its line ends."""
_FREE_CHUNKS: Final = 1024
_LEAST_CHUNK: Final = 64
_ONCE: Final = re.compile(
    rb"authorization|content-length|content-type|expect|host|idempotency-key|origin|transfer-encoding"
    rb"|webhook-(id|timestamp|signature)|x-(hub|github|gitlab|gitea|forgejo|gogs)-.*"
)


class ArrivingRequest:
    """The sizes of the request that is arriving: its head, its body, its trailers."""

    __slots__ = (
        "_begun",
        "_chunks",
        "_ended_one",
        "_fields",
        "_received",
        "_trailer_bytes",
        "body_bytes",
        "head_bytes",
        "in_head",
    )

    def __init__(self) -> None:
        self.in_head = True
        """True also between two requests."""
        self.head_bytes = 0
        """Bytes of the incomplete head; 0 while none has begun."""
        self.body_bytes = 0
        self._received = self._chunks = self._fields = self._trailer_bytes = 0
        self._begun = False
        self._ended_one = False
        """Whether a request ended in these bytes.

        The other requests in them cannot be measured then.
        """

    def begin(self) -> None:
        """A request begins."""
        self._begun = True
        self._received = self.body_bytes = self._chunks = self._fields = self._trailer_bytes = 0

    def field(self, size: int) -> Refusal | None:
        """Count a header or trailer of this size; return what is wrong."""
        self._fields += 1
        if not self.in_head:
            self._trailer_bytes += size
        is_large = self._fields > FIELDS or self._trailer_bytes > HEAD_BYTES
        return LARGE_HEAD if is_large else None

    def end_head(self) -> None:
        """The head is complete."""
        self.in_head, self.head_bytes = False, 0

    def chunk(self) -> Refusal | None:
        """Count another chunk of the body; return what is wrong."""
        self._chunks += 1
        return framing_problem(received=0, body=self.body_bytes, chunks=self._chunks)

    def end(self) -> None:
        """The request is complete."""
        self.in_head, self._ended_one, self._begun = True, True, False

    def receive(self, count: int) -> None:
        """Count bytes that are not parsed yet, of this request or the next."""
        self._ended_one = False
        self._received += count

    def framing(self) -> Refusal | None:
        """Return what is wrong with the framing of the body, so far."""
        return framing_problem(received=self._received, body=self.body_bytes, chunks=self._chunks)

    def measure_head(self, count: int) -> bool:
        """Count parsed bytes of a head; return whether it is a new one."""
        is_new = self._ended_one or self.head_bytes == 0
        if self._ended_one:
            self.head_bytes = int(self._begun)
        else:
            self.head_bytes += count
        return is_new


class CompleteRequest:
    """Replaces uvicorn's RequestResponseCycle from a request's last byte to its answer."""

    __slots__ = ("_body", "disconnected", "keep_alive", "response_complete")

    def __init__(self, body: Body | None) -> None:
        self._body = body
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        """False once the server is shutting down."""

    def release(self) -> None:
        """Drop the body, which is not needed any more."""
        if self._body is not None:
            self._body.release()

    @property
    def message_event(self) -> "CompleteRequest":
        return self

    def set(self) -> None:
        """Do nothing: no task waits for more of the request."""


def is_repeated(headers: Sequence[Field]) -> bool:
    """Whether a header that decides sender, kind or end of a request is repeated."""
    names = [name for name, _ in headers]
    if len(set(names)) == len(names):
        return False
    return any(names.count(name) > 1 for name in set(names) if _ONCE.fullmatch(name))


def framing_problem(*, received: int, body: int, chunks: int) -> Refusal | None:
    """Return what is wrong with a framing of so many bytes in so many chunks."""
    if chunks > _FREE_CHUNKS + body // _LEAST_CHUNK:
        return TINY_CHUNKS
    if received - body > 2 * HEAD_BYTES + _CHUNK_BYTES * chunks:
        return LARGE_HEAD
    return None
