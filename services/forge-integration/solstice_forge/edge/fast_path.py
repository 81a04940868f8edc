"""Answers whole webhooks without ASGI: without a task, messages or a timer per webhook.

ASGI was a tenth of what the receiver spends on a webhook. Uvicorn handles all other HTTP in its usual way: requests
that are large, slow or pipelined, and requests that are no webhooks. `tests/unit/forge/edge/test_fast_path.py` checks
the internals of uvicorn that this module relies on.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from solstice_common.http.bodies import Body
from solstice_common.http.protocol import BoundedProtocol
from solstice_forge.edge.answers import Field, HttpAnswer

REST_SECONDS: Final = 0.25
"""How long this path waits for the rest of a body; ASGI can wait longer."""
_WEBHOOK: Final = re.compile(rb"/webhooks/([A-Za-z0-9._-]+)/?")


@runtime_checkable
class WholeRequestApp(Protocol):
    """An ASGI application that can also take whole webhooks."""

    @property
    def whole_bytes(self) -> int:
        """Return the size of the largest body that it takes whole."""
        ...

    def take_whole(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        """Return whether it takes the webhook of that name.

        If it does, it calls `answer` once, later. If not, the request comes again through ASGI.
        """
        ...

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        """Return whether the headers alone cause a refusal, so that the body need not arrive."""
        ...


class WholeRequestProtocol(BoundedProtocol):
    """For `uvicorn.Config(http=...)`, with a WholeRequestApp or any other application."""

    cycle: "RequestResponseCycle | _Waiting | None"  # type: ignore[assignment]  # uvicorn has its own alone

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._taker = self.app if isinstance(self.app, WholeRequestApp) else None
        self._name = ""
        self._pieces: list[bytes] | None = None
        """The pieces of a webhook's body, until all of it has arrived."""
        self._rest: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._pieces is None:
            return
        if self.is_over:
            self._waiting_bytes()
        elif (self._rest is None and (self.expect_100_continue or self._is_unproven())) or self._is_large(
            self._pieces
        ):
            self._fall_back()
        elif self._rest is None:
            self._rest = self.loop.call_later(REST_SECONDS, self._fall_back)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_over:
            self._waiting_bytes()
        self._fall_back()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._fall_back()
        super().shutdown()

    def on_message_begin(self) -> None:
        # Uvicorn makes more objects here; they are made when the ASGI request begins.
        self.begin_counting()
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        self.end_head()
        if self._may_be_taken():
            self._pieces = []
        else:
            self._begin(())

    def on_body(self, body: bytes) -> None:
        if self._pieces is None:
            super().on_body(body)
        else:
            self.count_body(body)
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        pieces = self._waiting_bytes()
        if pieces is None:
            super().on_message_complete()
            return
        self.end_message()
        body, waiting = b"".join(pieces), _Waiting(self.body)
        if (
            self._taker is not None
            and len(body) <= self._taker.whole_bytes
            and self._taker.take_whole(self._name, self.headers, body, partial(self._answer, waiting))
        ):
            # Uvicorn's counters change with the answer, also when the connection is lost before it.
            self.cycle, self.body = waiting, None
            self.is_under_way()
        else:
            self._begin(pieces)
            HttpToolsProtocol.on_message_complete(self)

    def _may_be_taken(self) -> bool:
        """Whether this is a webhook on a connection that may stay open.

        Its method and path say so, and no other request waits on the connection.
        """
        parser = self.parser
        if (
            self._taker is None
            or (self.cycle is not None and not self.cycle.response_complete)
            or self.flow.write_paused
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or not parser.should_keep_alive()
            or parser.should_upgrade()
        ):
            return False
        named = _WEBHOOK.fullmatch(self.url)
        self._name = named[1].decode() if named else ""
        return named is not None

    def _is_large(self, pieces: Sequence[bytes]) -> bool:
        """Whether the body is, or will be, larger than `whole_bytes`."""
        most = 0 if self._taker is None else self._taker.whole_bytes
        announced = int(dict(self.headers).get(b"content-length", b"0"))
        return max(announced, sum(map(len, pieces))) > most

    def _is_unproven(self) -> bool:
        return self._taker is not None and self._taker.is_unproven(self._name, self.headers)

    def _waiting_bytes(self) -> list[bytes] | None:
        """Return the bytes of the body held so far, and release them."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        pieces, self._pieces = self._pieces, None
        return pieces

    def _fall_back(self) -> None:
        """Begin the ASGI request with the bytes held so far, if there are any."""
        pieces = self._waiting_bytes()
        if pieces is not None:
            self._begin(pieces)

    def _begin(self, pieces: Sequence[bytes]) -> None:
        """Begin the ASGI request with its headers and these pieces of its body."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        self.make_scope()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        self.start_cycle()
        for piece in pieces:
            self.hand_on(piece)

    def _answer(self, waiting: "_Waiting", answer: HttpAnswer) -> None:
        waiting.response_complete = True
        waiting.release()
        if answer.status < 300:  # noqa: PLR2004  nothing but what is genuine is answered so
            self.trust()
        if self.transport.is_closing():
            return  # the connection is closed
        further = self.server_state.default_headers
        if not waiting.keep_alive:
            further = [*further, (b"connection", b"close")]
        self.transport.write(answer.after(STATUS_LINE[answer.status], further))
        if not waiting.keep_alive:
            self.transport.close()
        self.on_response_complete()


class _Waiting:
    """Takes the place of uvicorn's RequestResponseCycle from a request's last byte to its answer."""

    __slots__ = ("_body", "disconnected", "keep_alive", "response_complete")

    def __init__(self, body: Body | None) -> None:
        self._body = body
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        """False once the server is ending."""

    def release(self) -> None:
        """Drop the body, which is not needed any more."""
        if self._body is not None:
            self._body.release()

    @property
    def message_event(self) -> "_Waiting":
        return self

    def set(self) -> None:
        """Do nothing: no task waits for more of the request."""
