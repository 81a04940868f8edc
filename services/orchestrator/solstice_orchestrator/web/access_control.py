"""Decide which callers may read and which may change something, after the guard."""

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
"""Paths that need no token.

Monitoring has no token, and these paths reveal nothing about builds. The description of the API is no secret.
"""
_STATIC: Final = "/static/"

ErrorResponder = Callable[[Request, int, str, str], Response]
"""Makes an error response from status, code and sentence."""


class AccessControl:
    """ASGI middleware that requires the scope `read` for reading and `operate` for changes.

    Refusals are 401 and 403, in the application's own form.
    """

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
        # A browser asks its user for a login, never for a bearer token; the user enters the token as the password.
        basic = f'Basic {REALM}, charset="UTF-8"'
        response.headers["WWW-Authenticate"] = (
            verdict.challenge if is_api or verdict.status != 401 else basic  # noqa: PLR2004
        )
        return response


def _is_for_everybody(path: str) -> bool:
    return path in _FOR_EVERYBODY or path.startswith(_STATIC)
