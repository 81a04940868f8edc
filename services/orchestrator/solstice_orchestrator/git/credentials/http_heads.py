"""Read the heads of requests to a proxy and of its answers, and rewrite them. Pure.

Source: RFC 9110 (sections 7.6 and 11.7) and RFC 9112 (sections 3.2 and 9.6).
"""

import re
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.git.credentials.proxy_choice import target_of
from solstice_orchestrator.processes.egress.message_heads import body_bytes_of, joined, split_head

_REQUEST_LINE: Final = re.compile(r"([A-Z]+) (\S+) HTTP/1\.[01]")
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] (\d{3})(?: |$)")
_OF_ONE_CONNECTION: Final = frozenset({"connection", "keep-alive", "proxy-authorization", "proxy-connection"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """A request to a proxy."""

    line: str
    fields: tuple[tuple[str, str], ...]
    is_tunnel: bool
    """Whether it asks for a connection (CONNECT)."""
    target: str
    """The host and port of the server."""
    body_bytes: int = 0

    def rewritten(self, authorization: str) -> bytes:
        """Return the request for the proxy, with other credentials; its connection serves nothing else."""
        passed_on = [(name, value) for name, value in self.fields if name.lower() not in _OF_ONE_CONNECTION]
        closing = [] if self.is_tunnel else [("Connection", "close")]
        return joined(self.line, [*passed_on, ("Proxy-Authorization", authorization), *closing])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAnswer:
    """The head of an answer."""

    line: str
    status: int
    fields: tuple[tuple[str, str], ...]

    @property
    def is_final(self) -> bool:
        """Whether another head follows otherwise (status 100 and the like)."""
        return self.status >= 200  # noqa: PLR2004  RFC 9110, section 15

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004

    @property
    def authentication(self) -> str:
        """The first word of each Proxy-Authenticate."""
        schemes = [
            _SCHEME.match(value) for name, value in self.fields if name.lower() == "proxy-authenticate"
        ]
        return ", ".join(scheme[0] for scheme in schemes if scheme)

    def rewritten(self) -> bytes:
        """Return the answer for git, after which the connection ends."""
        if not self.is_final:
            return joined(self.line, self.fields)
        passed_on = [(name, value) for name, value in self.fields if name.lower() not in _OF_ONE_CONNECTION]
        return joined(self.line, [*passed_on, ("Connection", "close")])


def read_request(head: bytes) -> ProxyRequest:
    """Read the head of a request to a proxy; ValueError for any other head."""
    line, fields = split_head(head)
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise ValueError("no request line")
    method, target = matched.groups()
    if method == "CONNECT":
        return ProxyRequest(line=line, fields=fields, is_tunnel=True, target=target_of(target, 443))
    scheme, _, rest = target.partition("://")
    if scheme.lower() != "http":
        raise ValueError("no request to a proxy")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    return ProxyRequest(
        line=line,
        fields=fields,
        is_tunnel=False,
        target=target_of(netloc, 80),
        body_bytes=body_bytes_of(fields),
    )


def read_answer(head: bytes) -> ProxyAnswer:
    """Read the head of an answer; ValueError for any other head."""
    line, fields = split_head(head)
    matched = _STATUS_LINE.match(line)
    if matched is None:
        raise ValueError("no status line")
    return ProxyAnswer(line=line, status=int(matched[1]), fields=fields)


def authorization_of(request: ProxyRequest) -> str:
    """The only Proxy-Authorization of a request; empty when there is none, or more than one."""
    values = [value for name, value in request.fields if name.lower() == "proxy-authorization"]
    return values[0] if len(values) == 1 else ""
