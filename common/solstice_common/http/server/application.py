"""Bounds requests inside an ASGI application, for a server whose protocol does not."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solstice_common.http.server import refusals
from solstice_common.http.server.arriving_request import is_repeated
from solstice_common.http.server.bodies import Bodies
from solstice_common.http.server.bounds import FIELDS, LINGER_BYTES, LINGER_SECONDS, URL_BYTES, Bounds

UNENFORCED: Final = "time for heads and silence; a full server refuses every caller; too large a head is 400"
"""The bounds that this cannot enforce."""
_OF_A_BODY: Final = frozenset({b"content-length", b"transfer-encoding"})
"""A request with one of them has a body (RFC 9112, section 6)."""
_CLOSE: Final = (b"connection", b"close")


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
        request = _Request(scope, self._bodies, self._silence_seconds, receive, send)
        refusal = _head_problem(scope) or await request.carry_out(self._app, scope)
        if refusal is not None:
            self._refused(refusal.reason)
            await request.refuse(refusal)


def _head_problem(scope: Scope) -> refusals.Refusal | None:
    if len(scope["raw_path"]) + len(scope["query_string"]) >= URL_BYTES:
        return refusals.LONG_URL
    if len(scope["headers"]) > FIELDS:
        return refusals.LARGE_HEAD
    return refusals.REPEATED if is_repeated(scope["headers"]) else None


class _Request:
    """One request, between the server and the application."""

    def __init__(
        self, scope: Scope, bodies: Bodies, silence_seconds: float, receive: Receive, send: Send
    ) -> None:
        self._refusal: refusals.Refusal | None = None
        self._body = bodies.body(self._give_up)
        self._is_given_up = False
        self._is_complete = not any(name in _OF_A_BODY for name, _ in scope["headers"])
        self._is_answered = False
        self._silence_seconds = silence_seconds
        self._read: asyncio.Timeout | None = None
        """The deadline of the read under way."""
        self._receive = receive
        self._send = send

    async def carry_out(self, app: ASGIApp, scope: Scope) -> refusals.Refusal | None:
        """Let the application answer it; return why it must be refused instead, if so."""
        try:
            await app(scope, self._next, self._answer)
        except Exception:
            if self._refusal is None:
                raise
            # The application knows that the client has disconnected.
        finally:
            self._body.release()
        return self._refusal

    async def refuse(self, refusal: refusals.Refusal) -> None:
        """Send only this refusal, unless an answer has begun."""
        if not self._is_answered:
            headers = {"connection": "close"}
            if refusal.retry_after:
                headers["retry-after"] = str(refusal.retry_after)
            answer = PlainTextResponse(f"{refusal.detail}\n", refusal.status, headers)
            await answer({"type": "http"}, self._receive, self._send_part)

    async def _next(self) -> Message:
        """Return the next message, or a disconnect: the application frees what it has read then."""
        if self._is_complete:
            return await self._receive()
        message: Message = {}
        if self._refusal is None:
            with contextlib.suppress(TimeoutError):
                message = await self._read_message()
                self._body.grow(len(message.get("body", b"")))
            if self._is_given_up:
                self._refusal = refusals.MANY_BODIES
            elif not message:
                self._refusal = refusals.SLOW
            elif not message.get("more_body", False):
                self._is_complete = True
                self._body.complete()
        return {"type": "http.disconnect"} if self._refusal is not None else message

    async def _read_message(self) -> Message:
        try:
            async with asyncio.timeout(self._silence_seconds) as self._read:
                return await self._receive()
        finally:
            self._read = None

    async def _answer(self, message: Message) -> None:
        if self._refusal is None:
            self._is_answered = True
            await self._send_part(message)

    async def _send_part(self, message: Message) -> None:
        """Send a part; close after an answer before the end of the body.

        The server would otherwise read and drop the rest of the body, however long it is.
        """
        if self._is_complete:
            await self._send(message)
        elif message["type"] == "http.response.start":
            fields = [field for field in message["headers"] if field != _CLOSE]
            await self._send({**message, "headers": [*fields, _CLOSE]})
        elif message.get("more_body", False):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._drop_more()
            await self._send({"type": "http.response.body"})

    async def _drop_more(self) -> None:
        """Read a little more of the body, so that the client can read the answer."""
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while dropped < LINGER_BYTES:
                    message = await self._receive()
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break

    def _give_up(self) -> None:
        """Too many bytes of bodies: refuse at the application's next read, or the present one."""
        self._is_given_up = True
        if self._read is not None and not self._read.expired():
            self._read.reschedule(asyncio.get_running_loop().time())
