"""Protect against DNS rebinding and against forms on other sites.

Without tokens the server answers only this machine; with them the user's browser remembers the login. In both
cases any web page in that browser may attack. `Host` reveals a page that rebinds its name to 127.0.0.1, and
`Origin` or `Sec-Fetch-Site` a page that posts here; a page cannot forge them (Fetch standard, section 3.2;
W3C Fetch Metadata).
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solstice_orchestrator.web.access_control import ErrorResponder

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_READING: Final = frozenset({"GET", "HEAD"})
PROBES: Final = ("/healthz", "/readyz", "/metrics")
"""Paths that also answer to the addresses of this server, by which clusters and Prometheus ask.

A page cannot rebind an address, only a name.
"""


class Guard:
    """ASGI middleware that refuses foreign requests and adds the security headers.

    The refusal is 421 for a foreign Host, else 403. The headers are added to every answer.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        host, *others = headers.getlist("host") or [""]
        if others:
            return _refused(421, "foreign_host", "This server is asked by one Host, not by several.")
        if not self._is_own_name(host) and not (path in PROBES and _address(host)):
            return _refused(
                421,
                "foreign_host",
                f"This server is not {host!r}; if it should be, set PUBLIC_URL to say so.",
            )
        if method in _READING:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._is_same(origin, host):
            return _refused(403, "foreign_origin", f"A page of {origin!r} may not change anything here.")
        if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return _refused(403, "foreign_origin", "A page of another site may not change anything here.")
        return None

    def _is_own_name(self, host: str) -> bool:
        name = _hostname(host)
        if name is None:
            return False
        address = _address(host)
        return name in self._allowed or name == "localhost" or bool(address and address.is_loopback)

    def _is_same(self, origin: str, host: str) -> bool:
        scheme, separator, authority = origin.partition("://")
        # Behind a proxy, Host may be ours and Origin the public one, which is then among the allowed hosts.
        return (
            bool(separator)
            and scheme in {"http", "https"}
            and (authority.lower() == host.lower() or _hostname(authority) in self._allowed)
        )


def _hostname(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # ValueError: 127.0.0.1:1,evil is no host and port
        return parts.hostname if host and not set(host) & set("/?#@\\ ,") else None
    except ValueError:
        return None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(_hostname(host) or "")
    except ValueError:
        return None


def _refused(status: int, code: str, message: str) -> Response:
    body = orjson.dumps({"error": {"code": code, "message": message}})
    return Response(body, status, media_type="application/json")


class NoZeroBytes:
    """ASGI middleware that refuses zero bytes: 404 in paths, 400 in queries.

    PostgreSQL cannot store them in texts.

    It runs behind access control, so refused callers learn nothing from it.
    """

    def __init__(self, app: ASGIApp, *, refused: ErrorResponder) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            if "\0" in scope["path"]:
                answer = self._refused(
                    Request(scope), 404, "not_found", "There is nothing here whose name holds a zero byte."
                )
            elif b"%00" in scope["query_string"]:
                answer = self._refused(
                    Request(scope), 400, "invalid_parameter", "No parameter holds a zero byte."
                )
        await answer(scope, receive, send)
