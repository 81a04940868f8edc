"""Who of those that the guard lets through may read, and who may change something."""

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_common.http import tokens
from solstice_common.http.access import REALM, Access, Caller
from solstice_common.http.local_callers import is_local

READING: Final = frozenset({"GET", "HEAD"})
_FOR_EVERYBODY: Final = ("/healthz", "/readyz", "/metrics", "/openapi.json")
"""What watches us has no token, and learns nothing of what is built; what the API is, is no secret."""
_STATIC: Final = "/static/"

ErrorResponder = Callable[[Request, int, str, str], Response]
"""Makes the answer from status, code and sentence."""


class AccessControl:
    """ASGI middleware: `read` for what only reads, `operate` for the rest; 401 and 403 as the application says them."""

    def __init__(self, app: ASGIApp, *, access: Access, refused: ErrorResponder) -> None:
        self._app = app
        self._access = access
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = (
            None if scope["type"] != "http" or _is_for_everybody(scope["path"]) else self._refusal(scope)
        )
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        needed = tokens.TokenScope.READ if scope["method"] in READING else tokens.TokenScope.OPERATE
        peer = scope.get("client")
        verdict = self._access.admit(
            needed,
            authorization=Headers(scope=scope).get("authorization"),
            is_local=is_local(
                peer=peer[0] if peer else None,
                headers=scope["headers"],
                http_version=scope.get("http_version", ""),
            ),
        )
        if isinstance(verdict, Caller):
            scope["caller"] = verdict.name
            return None
        response = self._refused(Request(scope), verdict.status, verdict.reason, verdict.detail)
        is_api = scope["path"].startswith("/api/")
        # A browser asks its user for a login, never for a bearer token; the password is the token then.
        basic = f'Basic {REALM}, charset="UTF-8"'
        response.headers["WWW-Authenticate"] = (
            verdict.challenge if is_api or verdict.status != 401 else basic  # noqa: PLR2004
        )
        return response


def _is_for_everybody(path: str) -> bool:
    return path in _FOR_EVERYBODY or path.startswith(_STATIC)
