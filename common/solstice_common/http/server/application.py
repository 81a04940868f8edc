"""Bounds requests inside an ASGI application, for a server whose protocol does not."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solstice_common.http.server import refusals
from solstice_common.http.server.arriving_request import is_repeated
from solstice_common.http.server.bodies import Bodies
from solstice_common.http.server.bounds import FIELDS, URL_BYTES, Bounds

UNENFORCED: Final = "time for heads and silence; a full server refuses every caller; too large a head is 400"
"""The bounds that this cannot enforce."""


class BoundedApplication:
    """Refuses wrong heads, silent bodies, and the largest body when all together are too large."""

    def __init__(self, app: ASGIApp, bounds: Bounds, *, refused: Callable[[str], None]) -> None:
        self._app = app
        self._silence_seconds = bounds.silence_seconds
        self._bodies = Bodies(bounds.body_bytes)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(self._bodies, self._silence_seconds, receive, send)
        if problem := _head_problem(scope):
            await request.refuse(problem)
        else:
            await request.carry_out(self._app, scope)
        if request.refusal is not None:
            self._refused(request.refusal.reason)


def _head_problem(scope: Scope) -> refusals.Refusal | None:
    if len(scope["raw_path"]) + len(scope["query_string"]) >= URL_BYTES:
        return refusals.LONG_URL
    if len(scope["headers"]) > FIELDS:
        return refusals.LARGE_HEAD
    return refusals.REPEATED if is_repeated(scope["headers"]) else None


class _Request:
    """One request, between the server and the application."""

    def __init__(self, bodies: Bodies, silence_seconds: float, receive: Receive, send: Send) -> None:
        self.refusal: refusals.Refusal | None = None
        self._body = bodies.body(self._give_up)
        self._is_given_up = False
        self._is_complete = False
        self._is_answered = False
        self._silence_seconds = silence_seconds
        self._silence = asyncio.timeout(None)
        self._receive = receive
        self._send = send

    async def carry_out(self, app: ASGIApp, scope: Scope) -> None:
        """Let the application answer it, unless it is refused meanwhile."""
        try:
            await app(scope, self._next, self._answer)
        except Exception:
            if self.refusal is None:
                raise
            # The application knows that the client has disconnected.
        finally:
            self._body.release()

    async def refuse(self, refusal: refusals.Refusal) -> None:
        """Send only this refusal, unless an answer has begun."""
        self.refusal = refusal
        self._body.release()
        if not self._is_answered:
            headers = {"connection": "close"}
            if refusal.retry_after:
                headers["retry-after"] = str(refusal.retry_after)
            answer = PlainTextResponse(f"{refusal.detail}\n", refusal.status, headers)
            await answer({"type": "http"}, self._receive, self._send)

    async def _next(self) -> Message:
        if self._is_complete:
            return await self._receive()
        if self.refusal is None:
            try:
                async with asyncio.timeout(self._silence_seconds) as self._silence:
                    message = await self._receive()
                self._body.grow(len(message.get("body", b"")))
            except TimeoutError:
                await self.refuse(refusals.MANY_BODIES if self._is_given_up else refusals.SLOW)
            else:
                if self._is_given_up:
                    await self.refuse(refusals.MANY_BODIES)
                elif not message.get("more_body", False):
                    self._is_complete = True
                    self._body.complete()
        return {"type": "http.disconnect"} if self.refusal is not None else message

    async def _answer(self, message: Message) -> None:
        if self.refusal is None:
            self._is_answered = True
            await self._send(message)

    def _give_up(self) -> None:
        """Too many bytes of bodies: refuse at the application's next read, or the present one."""
        self._is_given_up = True
        if self._silence.when() is not None and not self._silence.expired():
            self._silence.reschedule(asyncio.get_running_loop().time())
