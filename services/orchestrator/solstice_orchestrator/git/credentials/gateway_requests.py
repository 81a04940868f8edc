"""Read git's requests to the gateway, and rewrite them for the host. Pure.

Only the two requests of a fetch are let through (git-scm.com/docs/http-protocol, "Smart Clients"): a process that finds
the gateway cannot push, or reach another path of the host.
"""

import re
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.processes.egress.message_heads import body_bytes_of, joined, split_head

_REQUEST_LINE: Final = re.compile(r"(GET|POST) (/[^\s?#]*)(?:\?(\S*))? HTTP/1\.1")
_UP: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "content-encoding",
        "content-length",
        "content-type",
        "git-protocol",
        "user-agent",
    }
)
_DOWN: Final = frozenset(
    {
        "cache-control",
        "content-encoding",
        "content-length",
        "content-type",
        "retry-after",
        "transfer-encoding",
    }
)
"""The fields of a request and of an answer that pass; above all no Location, Set-Cookie or Authorization."""
LISTING: Final = ("GET", "/info/refs", "service=git-upload-pack")
FETCHING: Final = ("POST", "/git-upload-pack", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request of a fetch."""

    method: str
    path: str
    """The path of the repository."""
    suffix: str
    query: str
    fields: tuple[tuple[str, str], ...]
    body_bytes: int
    token: str
    """What the client knows of the gateway."""

    def rewritten(self, host: str, authorization: str) -> bytes:
        """Return the request for the host, with the credential; its connection serves nothing else."""
        passed = [(name, value) for name, value in self.fields if name.lower() in _UP]
        target = f"{self.path}{self.suffix}{f'?{self.query}' if self.query else ''}"
        return joined(
            f"{self.method} {target} HTTP/1.1",
            [("Host", host), *passed, ("Authorization", authorization), ("Connection", "close")],
        )


def read_gateway_request(head: bytes) -> GatewayRequest | None:
    """Read the head of a request; None unless it is part of a fetch.

    ValueError for anything that is no request.
    """
    line, fields = split_head(head)
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise ValueError("no request line")
    method, target, query = matched[1], matched[2], matched[3] or ""
    for allowed_method, suffix, allowed_query in (LISTING, FETCHING):
        if method == allowed_method and query == allowed_query and target.endswith(suffix):
            tokens = [value for name, value in fields if name.lower() == "authorization"]
            return GatewayRequest(
                method=method,
                path=target.removesuffix(suffix),
                suffix=suffix,
                query=query,
                fields=fields,
                body_bytes=body_bytes_of(fields),
                token=tokens[0] if len(tokens) == 1 else "",
            )
    return None


def passed_answer(line: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    """Return the head of an answer for git, after which the connection ends."""
    passed = [(name, value) for name, value in fields if name.lower() in _DOWN]
    return joined(line, [*passed, ("Connection", "close")])
