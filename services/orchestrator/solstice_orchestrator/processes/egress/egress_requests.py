"""Read requests to the proxy of a job, and decide what the host gets. Pure.

Source: RFC 9110 (sections 7.6 and 9.3.6) and RFC 9112 (section 3.2).
"""

import re
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.processes.egress.allowed_hosts import Target, target_of
from solstice_orchestrator.processes.egress.message_heads import body_bytes_of, joined, split_head

_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.[01]")
_URL: Final = re.compile(r"http://([^/?#]+)([/?][^#]*)?", re.IGNORECASE)
_OF_ONE_CONNECTION: Final = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    }
)
_HTTP: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRequest:
    """A request of a job for a host."""

    target: Target
    head: bytes = b""
    """What the host gets first; empty for a tunnel (CONNECT)."""
    body_bytes: int | None = None
    """How much of what follows it gets; None: all of a tunnel."""

    @property
    def is_tunnel(self) -> bool:
        return not self.head


def read_egress_request(head: bytes) -> EgressRequest:
    """Read the head of a request; ValueError says what is wrong with it.

    The host gets its own name in `Host`, not what the job wrote there, and one request: it could take the rest of the
    connection for a request to another host.
    """
    line, fields = split_head(head)
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise ValueError("this is no HTTP request")
    method, written = matched.groups()
    if method == "CONNECT":
        return EgressRequest(target=target_of(written))
    url = _URL.fullmatch(written)
    if url is None:
        raise ValueError("a proxy takes CONNECT, or http:// and a host")
    netloc, path = url.groups()
    target = target_of(netloc, _HTTP)
    named = {
        name.strip().lower()
        for field, value in fields
        if field.lower() == "connection"
        for name in value.split(",")
    }
    dropped = _OF_ONE_CONNECTION | named - {"content-length", "transfer-encoding"}
    passed_on = [(name, value) for name, value in fields if name.lower() not in dropped]
    host = str(target).removesuffix(f":{_HTTP}")
    path = path if path and path.startswith("/") else f"/{path or ''}"
    return EgressRequest(
        target=target,
        head=joined(f"{method} {path} HTTP/1.1", [("Host", host), *passed_on, ("Connection", "close")]),
        body_bytes=body_bytes_of(fields),
    )
