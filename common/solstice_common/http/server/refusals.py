"""Makes the protocol's own answers to requests that exceed a bound. Pure."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Literal

from solstice_common.http.server.bounds import FIELDS, HEAD_BYTES, URL_BYTES, WAITING_REQUESTS
from solstice_common.values.value import Value

Field = tuple[bytes, bytes]
"""Name (in lower case) and value of a header."""


RefusalReason = Literal[
    "crowded_out",
    "large_head",
    "long_url",
    "malformed_http",
    "many_bodies",
    "many_connections",
    "pipelined",
    "repeated_header",
    "tiny_chunks",
    "too_slow",
]


class Refusal(Value, frozen=True):
    """The protocol's own answer, after which it closes the connection."""

    status: int
    reason: RefusalReason
    detail: str
    retry_after: int = 0

    def encoded(self, further: Iterable[Field] = ()) -> bytes:
        """Return the whole answer (RFC 9112, section 2.1)."""
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
"""The reason when a connection is closed without an answer, to admit a new one."""
SILENT: Final = "silent"
"""The reason when a client sent or read nothing."""
