"""Answers whole webhooks without ASGI: without a task, messages or a timer per webhook.

ASGI was a tenth of what the receiver spends on a webhook. Uvicorn handles all other HTTP in its usual way: requests
that are large, slow or pipelined, and requests that are no webhooks.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from solstice_common.http.server.arriving_request import CompleteRequest
from solstice_common.http.server.protocol import BoundedProtocol
from solstice_common.http.server.refusals import Field
from solstice_forge.edge.answers import HttpAnswer
from solstice_forge.edge.urls import WEBHOOK, source_in_bytes

REST_SECONDS: Final = 0.25
"""How long this path waits for the rest of a body; ASGI can wait longer."""
_METHOD: Final = WEBHOOK.method.encode()


@runtime_checkable
class CompleteRequestApp(Protocol):
    """An ASGI application that can also take whole webhooks."""

    @property
    def max_complete_bytes(self) -> int:
        """Return the size of the largest body that it takes whole."""
        ...

    def take_complete(
        self, name: str, headers: Sequence[Field], body: bytes, answer: Callable[[HttpAnswer], None]
    ) -> bool:
        """Return whether it takes the webhook of that name.

        If it does, it calls `answer` once, later. If not, the request comes again through ASGI.
        """
        ...

    def is_unproven(self, name: str, headers: Sequence[Field]) -> bool:
        """Return whether the headers alone cause a refusal, so that the body need not arrive."""
        ...


class CompleteRequestProtocol(BoundedProtocol):
    """For `uvicorn.Config(http=...)`, with a CompleteRequestApp or any other application."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._taker = self.app if isinstance(self.app, CompleteRequestApp) else None
        self._name = ""
        self._pieces: list[bytes] | None = None
        """The pieces of a webhook's body, until all of it has arrived."""
        self._rest: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._pieces is None:
            return
        if self.is_over:
            self._take_pieces()
        elif (self._rest is None and (self.expect_100_continue or self._is_unproven())) or self._is_large(
            self._pieces
        ):
            self._fall_back()
        elif self._rest is None:
            self._rest = self.loop.call_later(REST_SECONDS, self._fall_back)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_over:
            self._take_pieces()
        self._fall_back()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._fall_back()
        super().shutdown()

    def on_headers_complete(self) -> None:
        self.end_head()
        if self._may_begin():
            self._pieces = []
        else:
            self.begin_asgi(())

    def on_body(self, body: bytes) -> None:
        if self._pieces is None:
            super().on_body(body)
        else:
            self.count_body(body)
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        pieces = self._take_pieces()
        if pieces is None:
            super().on_message_complete()
            return
        self.end_message()
        body, request = b"".join(pieces), CompleteRequest(self.body)
        if (
            self._taker is not None
            and len(body) <= self._taker.max_complete_bytes
            and self._taker.take_complete(self._name, self.headers, body, partial(self._answer, request))
        ):
            self.wait_for_answer(request)
        else:
            self.begin_asgi(pieces)
            super().on_message_complete()

    def _may_begin(self) -> bool:
        """Whether this is a webhook on a connection where no other request waits."""
        if self._taker is None or not self.is_lone(_METHOD):
            return False
        name = source_in_bytes(self.url)
        self._name = name or ""
        return name is not None

    def _is_large(self, pieces: Sequence[bytes]) -> bool:
        """Whether the body is, or will be, larger than `max_complete_bytes`."""
        most = 0 if self._taker is None else self._taker.max_complete_bytes
        announced = int(dict(self.headers).get(b"content-length", b"0"))
        return max(announced, sum(map(len, pieces))) > most

    def _is_unproven(self) -> bool:
        return self._taker is not None and self._taker.is_unproven(self._name, self.headers)

    def _take_pieces(self) -> list[bytes] | None:
        """Return the bytes of the body held so far, and release them."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        pieces, self._pieces = self._pieces, None
        return pieces

    def _fall_back(self) -> None:
        """Begin the ASGI request with the bytes held so far, if there are any."""
        pieces = self._take_pieces()
        if pieces is not None:
            self.begin_asgi(pieces)

    def _answer(self, request: CompleteRequest, answer: HttpAnswer) -> None:
        if answer.status < 300:  # noqa: PLR2004  nothing but what is genuine is answered so
            self.trust()
        self.answer(request, answer.after)
