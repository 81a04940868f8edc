"""Decide which callers may read and which may change something, after the guard."""

from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solstice_common.http import tokens
from solstice_common.http.access import REALM, Access, Caller, Denied
from solstice_common.http.local_callers import is_local

READING: Final = frozenset({"GET", "HEAD"})
_FOR_EVERYBODY: Final = ("/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths that need no token.

Monitoring has no token, and these paths reveal nothing about builds. The description of the API is public.
"""
_STATIC: Final = "/static/"

ErrorResponder = Callable[[Request, int, str, str], Response]
"""Makes an error response from status, code and sentence."""


class _Withdrawn(Exception):
    """The caller lost the right to read the answer."""


class AccessControl:
    """ASGI middleware that requires the scope `read` for reading and `operate` for changes.

    Refusals are 401 and 403, in the application's own form.
    """

    def __init__(self, app: ASGIApp, *, access: Access, refused: ErrorResponder) -> None:
        self._app = app
        self._access = access
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_for_everybody(scope["path"]):
            await self._app(scope, receive, send)
        elif refusal := self._refusal(scope):
            await refusal(scope, receive, send)
        else:
            await self._send_while_admitted(scope, receive, send)

    async def _send_while_admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; end a stream when its caller loses the right to read.

        An event stream may outlive its token. It ends at its next piece, a heartbeat at the latest; the
        client reconnects and is refused. A download is left incomplete, so that the client notices.
        """
        content_type = ""

        async def send_if_admitted(message: Message) -> None:
            nonlocal content_type
            if message["type"] == "http.response.start":
                content_type = Headers(raw=message["headers"]).get("content-type", "")
            elif message.get("more_body") and isinstance(self._verdict(scope), Denied):
                raise _Withdrawn
            await send(message)

        try:
            await self._app(scope, receive, send_if_admitted)
        except _Withdrawn:
            if content_type.startswith("text/event-stream"):
                await send({"type": "http.response.body", "body": b""})

    def _verdict(
        self, scope: Scope, needed: tokens.TokenScope | None = None, *, logged: bool = True
    ) -> Caller | Denied:
        if needed is None:
            needed = tokens.TokenScope.READ if scope["method"] in READING else tokens.TokenScope.OPERATE
        peer = scope.get("client")
        return self._access.admit(
            needed,
            authorization=Headers(scope=scope).get("authorization"),
            is_local=is_local(
                peer=peer[0] if peer else None,
                headers=scope["headers"],
                http_version=scope.get("http_version", ""),
            ),
            logged=logged,
        )

    def _may_operate(self, scope: Scope) -> bool:
        return isinstance(self._verdict(scope, tokens.TokenScope.OPERATE, logged=False), Caller)

    def _refusal(self, scope: Scope) -> Response | None:
        verdict = self._verdict(scope)
        if isinstance(verdict, Caller):
            scope["caller"] = verdict.name
            # Pages call it, to leave out buttons that would be refused.
            scope["may_operate"] = partial(self._may_operate, scope)
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
