"""Uvicorn's HTTP/1.1 protocol, with bounds on bytes, fields, time, connections and bodies.

This module alone relies on uvicorn's inside (`uvicorn.protocols.http.httptools_impl`, which promises none of
it). pyproject.toml bounds its version, `tests/unit/common/http/server/test_http_inside.py` fails when the
inside changes, and `SOLSTICE_PUBLIC_INTERFACES=uvicorn` is the fallback: `serving` then uses only uvicorn's
public settings, which bound heads, but not times.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from solstice_common.http.server import refusals
from solstice_common.http.server.arriving_request import ArrivingRequest, CompleteRequest, is_repeated
from solstice_common.http.server.bodies import Body
from solstice_common.http.server.bounds import (
    HEAD_BYTES,
    LINGER_BYTES,
    LINGER_SECONDS,
    URL_BYTES,
    WAITING_REQUESTS,
    Bounds,
)
from solstice_common.http.server.connections import ConnectionState, ServerConnections, connection_state
from solstice_common.http.server.read_queue import LARGE_READ, QueuedReader
from solstice_common.http.server.refusals import Field
from solstice_common.http.server.transport import OneWriteTransport


class _Refused(Exception):
    """An exception that stops the parser; the protocol holds the refusal itself."""


class BoundedProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`."""

    def __init__(self, *args: Any, connections: ServerConnections | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = ServerConnections(Bounds()) if connections is None else connections
        self.arrival = ArrivingRequest()
        self.body: Body | None = None
        """The bytes of the arriving body that count against the budget."""
        self._out: OneWriteTransport = None  # type: ignore[assignment]  # until there is a connection
        self._is_trusted = False
        self._own_cycle: RequestResponseCycle | None = None
        """The cycle of the arriving request."""
        self._unfinished = 0
        """Requests that are being answered or wait for it."""
        self._refusal: refusals.Refusal | None = None
        """Why the parser was stopped."""
        self._last: refusals.Refusal | None = None
        """The refusal that is sent after all pending answers."""
        self._is_gone = False
        self.is_over = False
        """Whether further bytes that arrive are ignored."""
        self._dropped = 0
        self._deadline = math.inf

    # Called by asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        reading = QueuedReader(transport, self.shared.reads)
        self._out = OneWriteTransport(transport, self.loop, self._reads_on, reading)
        super().connection_made(self._out)  # type: ignore[arg-type]  # it delegates
        if self.shared.admit(self, self.loop):
            self._deadline = self.loop.time() + self.shared.bounds.silence_seconds
        else:
            self._answer_last(refusals.MANY_CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        if len(data) <= HEAD_BYTES - self.arrival.head_bytes:
            self._feed(data)
            return
        view, begin = memoryview(data), 0
        while begin < len(view):
            # Feed at most the bytes that complete a head of the largest size, so that the cuts of the stream
            # do not matter.
            end = begin + (len(view) if self.is_over else HEAD_BYTES - self.arrival.head_bytes)
            self._feed(view[begin:end])
            begin = end
        # A refused connection is dropped after a few more bytes: it need not wait for its turn to be read.
        if len(data) >= LARGE_READ and not self.is_over and not self.arrival.in_head:
            self._out.reading.wait_in_queue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone = self.is_over = True
        self.shared.forget(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        for cycle, _ in self.pipeline:
            _release(cycle)
        if self.body is not None and self._own_cycle is None:
            self.body.release()

    # Called by the parser

    def on_message_begin(self) -> None:
        self.arrival.begin()
        self._own_cycle = self.body = None
        # Uvicorn makes more objects here; they are made when the ASGI request begins.
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            self._stop(refusals.LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        if problem := self.arrival.field(len(name) + len(value) + 4):
            self._stop(problem)
        # A trailer comes after the sender was authenticated, and is never treated as a header (RFC 9110,
        # section 6.5.1).
        if self.arrival.in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.end_head()
        self.begin_asgi(())

    def on_chunk_header(self) -> None:
        if problem := self.arrival.chunk():
            self._stop(problem)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete or cycle.disconnected:
            self.arrival.body_bytes += len(body)
            return
        self.count_body(body)
        self._hand_on(body)

    def on_message_complete(self) -> None:
        self.end_message()
        super().on_message_complete()

    # Called by uvicorn

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        async def accounted(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            finally:
                _release(cycle)

        super()._start_asgi_task(cycle, accounted)

    def on_response_complete(self) -> None:
        self._unfinished -= 1
        super().on_response_complete()
        if self._out.is_closing():
            return
        if self._last is not None and self._unfinished == 0:
            self._answer_last(self._last)
        elif not self.arrival.in_head and self._own_cycle is not None and self._own_cycle.response_complete:
            # When a body was answered early, the rest of it is read and dropped for a while.
            self._deadline = self.loop.time() + LINGER_SECONDS
        self._report_state()

    # Called by subclasses

    def end_head(self) -> None:
        """The head is complete: later fields are not added to it."""
        if is_repeated(self.headers):
            self._stop(refusals.REPEATED)
        if self._unfinished >= WAITING_REQUESTS:
            self._stop(refusals.PIPELINED)
        self.arrival.end_head()

    def is_lone(self, method: bytes) -> bool:
        """Whether such a request is the only one on its connection, which stays open."""
        parser = self.parser
        return (
            (self.cycle is None or self.cycle.response_complete)  # type: ignore[redundant-expr]  # None at first
            and not self.flow.write_paused
            and parser.get_method() == method
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    def begin_asgi(self, pieces: Sequence[bytes]) -> None:
        """Begin to answer by ASGI a request with these pieces of its body."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.scope["state"]["trust"] = self.trust
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        HttpToolsProtocol.on_headers_complete(self)
        self._unfinished += 1
        self._own_cycle = self.cycle
        if self.body is not None:
            self.cycle.counted = self.body  # type: ignore[attr-defined]  # ours, on uvicorn's object
        for piece in pieces:
            self._hand_on(piece)

    def wait_for_answer(self, request: CompleteRequest) -> None:
        """Answer no other request on this connection before `answer` is called with this one."""
        # Uvicorn's counters change with the answer, also when the connection is lost first.
        self.cycle, self.body = request, None  # type: ignore[assignment]  # it has all that uvicorn asks it for
        self._unfinished += 1

    def answer(self, request: CompleteRequest, encode: Callable[[Iterable[Field]], bytes]) -> None:
        """Write the bytes of the answer, which `encode` makes with the server's own headers."""
        request.response_complete = True
        request.release()
        if self.transport.is_closing():
            return  # the connection is closed
        further = self.server_state.default_headers
        if not request.keep_alive:
            further = [*further, (b"connection", b"close")]
        self.transport.write(encode(further))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def count_body(self, body: bytes) -> None:
        """Count arrived bytes of the body."""
        self.arrival.body_bytes += len(body)
        if self.body is None:
            self.body = self.shared.bodies.body(lambda: self._refuse(refusals.MANY_BODIES))
            if self._own_cycle is not None:
                self._own_cycle.counted = self.body  # type: ignore[attr-defined]  # ours
        self.body.grow(len(body))
        if self.is_over:
            raise _Refused

    def end_message(self) -> None:
        """The request is complete."""
        if self.body is not None:
            self.body.complete()
        self.arrival.end()

    def trust(self) -> None:
        """Keep the connection open for its genuine request, when unknown callers need room."""
        self._is_trusted = True

    # Deadlines, state, refusals

    def check_deadlines(self, now: float) -> None:
        if self._out.is_stuck(now, self.shared.bounds.silence_seconds):
            self.shared.refused(refusals.SILENT)
            self.drop()
        elif now >= self._deadline:
            self._expired(now)

    def drop(self) -> None:
        self._is_gone = self.is_over = True
        self.shared.forget(self)
        self._out.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._report_state()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._report_state()

    def _hand_on(self, body: bytes) -> None:
        cycle = self.cycle
        # Nearly every webhook is read in one piece. It is passed on without a copy: uvicorn would copy it
        # into a buffer and out again.
        is_first = not cycle.body
        HttpToolsProtocol.on_body(self, b"" if is_first else body)
        if is_first:
            cycle.body = body  # type: ignore[assignment]  # read by `bytes`, and added to as bytes can be

    def _feed(self, data: bytes | memoryview) -> None:
        if self.is_over:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.drop()
            return
        self._unset_keepalive_if_required()
        self.arrival.receive(len(data))
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or refusals.MALFORMED)
            return
        except httptools.HttpParserUpgrade:
            # The following bytes may be of another protocol: this answer is the last.
            self.cycle.keep_alive, self.is_over = False, True
            if not self._unfinished:
                self._out.close()
        self._after(len(data))

    def _after(self, count: int) -> None:
        """Set the state and its deadline after bytes were parsed."""
        if self.arrival.in_head:
            self._measure_head(count)
        else:
            if problem := self.arrival.framing():
                self._refuse(problem)
                return
            if self._own_cycle is None or not self._own_cycle.response_complete:
                self._deadline = self.loop.time() + self.shared.bounds.silence_seconds
        if not self.is_over:
            self._report_state()

    def _measure_head(self, count: int) -> None:
        if self.arrival.measure_head(count):
            seconds = self.shared.bounds.head_seconds if self.arrival.head_bytes else math.inf
            self._deadline = self.loop.time() + seconds
        if self.arrival.head_bytes >= HEAD_BYTES:
            self._refuse(refusals.LARGE_HEAD)

    def _report_state(self) -> None:
        if not self._is_gone:
            state = connection_state(
                is_answering=self._unfinished > 0,
                is_arriving=not self.arrival.in_head,
                is_over=self.is_over,
                is_read_slowly=self.flow.write_paused,
                is_trusted=self._is_trusted,
            )
            self.shared.set_state(self, state)

    def _expired(self, now: float) -> None:
        if self.is_over:
            self.drop()
        elif self.arrival.in_head and self.arrival.head_bytes == 0:
            self.shared.refused(refusals.SILENT)
            self._out.close()
        elif not self._out.reading.is_read:
            # The client is not silent: we have paused reading.
            self._deadline = now + self.shared.bounds.silence_seconds
        else:
            self._refuse(refusals.SLOW)

    def _stop(self, refusal: refusals.Refusal) -> None:
        """Refuse, and stop the parser from one of its callbacks."""
        self._refusal = refusal
        raise _Refused

    def _refuse(self, refusal: refusals.Refusal) -> None:
        """Stop parsing; send this refusal after all pending answers, and close."""
        if self.is_over:
            return
        self.is_over = True
        self._deadline = math.inf
        cycle = self._own_cycle
        if cycle is None or self.arrival.in_head:
            # Only a head, or a body that was held back, has arrived: no answer was begun.
            if self.body is not None and not self.arrival.in_head:
                self.body.release()
        elif any(waiting is cycle for waiting, _ in self.pipeline):
            self.pipeline = type(self.pipeline)(pair for pair in self.pipeline if pair[0] is not cycle)
            self._unfinished -= 1
            _release(cycle)
        else:
            was_silent = not (cycle.response_started or cycle.response_complete)
            cycle.disconnected = True
            cycle.message_event.set()
            _release(cycle)
            self._unfinished = 0
            self._answer_last(refusal, is_answered=was_silent)
            return
        if self._unfinished:
            self._last = refusal
            self._report_state()
        else:
            self._answer_last(refusal)

    def _answer_last(self, refusal: refusals.Refusal, *, is_answered: bool = True) -> None:
        self.is_over, self._last = True, None
        self.shared.refused(refusal.reason)
        if is_answered:
            self._out.write(refusal.encoded(self.server_state.default_headers))
        self._out.close()

    def _reads_on(self) -> bool:
        """Whether bytes of the client may still arrive when the connection ends.

        Closing then would reset the connection, and the client might never read our last answer.
        """
        reads_on = self.is_over or not self.arrival.in_head
        self.is_over = True
        self._unset_keepalive_if_required()
        bounds = self.shared.bounds
        self._deadline = self.loop.time() + (LINGER_SECONDS if reads_on else bounds.silence_seconds)
        self.flow.resume_reading()
        if not self._is_gone:
            self.shared.set_state(self, ConnectionState.ANSWERED)
        return reads_on


def _release(cycle: RequestResponseCycle) -> None:
    """Drop the body that no task reads, and stop counting it."""
    # Uvicorn keeps it as long as the connection, which outlives an answer that came before the end of the body.
    cycle.body = b""  # type: ignore[assignment]  # uvicorn reads it and adds to it, as bytes allow
    counted: Body | None = getattr(cycle, "counted", None)
    if counted is not None:
        counted.release()
