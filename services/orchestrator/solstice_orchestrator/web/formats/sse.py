"""Server-sent events, as the HTML standard defines them (section 9.2): values, their bytes, and the response.

Our own small response instead of a library's: streams end with the server that serves them, not with a process-wide
flag, and leave no task behind.
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
"""Changes closer together than this are looked at once."""
RETRY_MILLISECONDS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; `id` is where a client that lost the line resumes."""

    name: str
    data: Document
    id: str | None = None

    def encode(self) -> bytes:
        """Its lines; JSON holds no line break, so one `data` line is enough."""
        identity = f"id: {self.id}\n" if self.id is not None else ""
        return f"event: {self.name}\n{identity}data: ".encode() + orjson.dumps(self.data) + b"\n\n"


Events = AsyncGenerator[Event | None, None]
"""What a stream tells; None says that it looked and there was nothing to tell."""


class ChangeSource(Protocol):
    """What tells of its changes: a store, or a part of one."""

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]: ...


class OpenStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        self.closed = False
        self._bells: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._bells)

    def close(self) -> None:
        """End every stream soon, and each new one at once; a client comes again to whoever serves then."""
        self.closed = True
        for changed in self._bells:
            changed.set()

    @asynccontextmanager
    async def changes(self, store: ChangeSource) -> AsyncIterator["ChangePacer"]:
        """The store's changes, and the end of the server."""
        async with store.changes() as changed:
            self._bells.add(changed)
            try:
                yield ChangePacer(self, changed)
            finally:
                self._bells.discard(changed)


class ChangePacer:
    """Paces one stream: `while await changes.look(): ...` looks at once, and then after every change."""

    def __init__(self, streams: OpenStreams, changed: asyncio.Event) -> None:
        self._streams = streams
        self._changed = changed
        self._looked_at: float | None = None

    async def look(self, settle_seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until it is worth looking again, at most HEARTBEAT_SECONDS; False when the server ends."""
        clock = asyncio.get_running_loop().time
        if self._looked_at is not None:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(self._looked_at + settle_seconds - clock())
            except TimeoutError:
                pass  # a ring may have gone astray
        self._looked_at = clock()
        self._changed.clear()
        return not self._streams.closed


class EventStream(StreamingResponse):
    """Sends events as they come and a comment when there was none for HEARTBEAT_SECONDS."""

    media_type = "text/event-stream"

    def __init__(self, events: Events) -> None:
        self._lines = _encoded(events)
        super().__init__(self._lines, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        # Closed here, in the task that serves the request, whatever state the client left it in.
        async with aclosing(self._lines):
            await super().stream_response(send)


async def _encoded(events: Events) -> AsyncGenerator[bytes, None]:
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    async with aclosing(events):
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        async for event in events:
            if event is not None:
                yield event.encode()
            elif clock() - sent_at >= HEARTBEAT_SECONDS * 0.9:
                yield b": still here\n\n"
            else:
                continue
            sent_at = clock()
