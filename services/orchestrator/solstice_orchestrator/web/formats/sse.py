"""Server-sent events of the HTML standard (section 9.2): values, encoding and response.

The response is our own instead of a library's: its streams end with their server, not with a process-wide flag, and
leave no task behind.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Send

from solstice_orchestrator.web.formats.api_json import Document

HEARTBEAT_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 0.1
"""Changes within this time are handled together."""
RETRY_MILLISECONDS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event; a client that lost its connection resumes at `id`."""

    name: str
    data: Document
    id: str | None = None

    def encode(self) -> bytes:
        """Encode the event's lines; JSON has no line break, so one `data` line suffices."""
        identity = f"id: {self.id}\n" if self.id is not None else ""
        return f"event: {self.name}\n{identity}data: ".encode() + orjson.dumps(self.data) + b"\n\n"


Events = AsyncGenerator[Event | None, None]
"""The events of a stream; None means that nothing has changed."""


class ChangeSource(Protocol):
    """A store, or a part of one, that notifies of its changes."""

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]: ...


class OpenStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        self.closed = False
        self._listeners: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def close(self) -> None:
        """End every open stream soon, and each new one at once.

        Clients then connect again to the next server.
        """
        self.closed = True
        for changed in self._listeners:
            changed.set()

    @asynccontextmanager
    async def changes(self, store: ChangeSource) -> AsyncIterator["ChangePacer"]:
        """Return a pacer that wakes at changes of the store and at server end."""
        async with store.changes() as changed:
            self._listeners.add(changed)
            try:
                yield ChangePacer(self, changed)
            finally:
                self._listeners.discard(changed)


class ChangePacer:
    """Paces one stream, used as `while await changes.wait(): ...`.

    `wait` returns at once the first time, and then after every change.
    """

    def __init__(self, streams: OpenStreams, changed: asyncio.Event) -> None:
        self._streams = streams
        self._changed = changed
        self._waited_at: float | None = None

    async def wait(self, settle_seconds: float = SETTLE_SECONDS) -> bool:
        """Wait for a change, at most HEARTBEAT_SECONDS; False when the server ends."""
        clock = asyncio.get_running_loop().time
        if self._waited_at is not None:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(self._waited_at + settle_seconds - clock())
            except TimeoutError:
                pass  # a notification may have been lost
        self._waited_at = clock()
        self._changed.clear()
        return not self._streams.closed


class EventStream(StreamingResponse):
    """Sends events as they come, and a comment after HEARTBEAT_SECONDS without one.

    The head of the answer is sent after the first check: from then on, the client gets every change.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Events) -> None:
        self._lines = _encoded(events)
        super().__init__(self._lines, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        # Closed here, in the task that serves the request, in any state in which the client left it.
        async with aclosing(self._lines):
            self.body_iterator = _resumed(await anext(self._lines), self._lines)
            await super().stream_response(send)


async def _resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for lines in rest:
        yield lines


async def _encoded(events: Events) -> AsyncGenerator[bytes, None]:
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    async with aclosing(events):
        first = await anext(events, None)
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode() + (b"" if first is None else first.encode())
        async for event in events:
            if event is not None:
                yield event.encode()
            elif clock() - sent_at >= HEARTBEAT_SECONDS * 0.9:
                yield b": still here\n\n"
            else:
                continue
            sent_at = clock()
