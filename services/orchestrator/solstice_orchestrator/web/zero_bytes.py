"""PostgreSQL's texts hold no zero byte, so nothing of ours is named by one, and nothing is looked for by one."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from solstice_orchestrator.web.access_control import ErrorResponder


class NoZeroBytes:
    """ASGI middleware: 404 for a path with a zero byte in it, 400 for a query; behind the entrance, as nobody else is told."""

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
