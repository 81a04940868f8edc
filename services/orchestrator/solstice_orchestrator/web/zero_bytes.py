"""Refuse requests with zero bytes, which PostgreSQL cannot store in texts."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_orchestrator.web.access_control import ErrorResponder


class NoZeroBytes:
    """ASGI middleware that answers 404 for zero bytes in paths, 400 in queries.

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
