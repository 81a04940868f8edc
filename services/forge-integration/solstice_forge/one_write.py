"""Uvicorn's HTTP, with one system call for an answer instead of two, and bodies that are not copied."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OneWriteProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_TurnTransport(transport, self.loop))  # type: ignore[arg-type]  # it delegates

    def on_body(self, body: bytes) -> None:
        # Nearly every webhook is read in one piece. It is handed on as it is: uvicorn would copy it into a buffer, and
        # out of that again.
        cycle = self.cycle
        is_first = not cycle.body
        super().on_body(b"" if is_first else body)
        if is_first:
            cycle.body = body  # type: ignore[assignment]  # read by `bytes`, and added to as bytes can be


class _TurnTransport:
    """A transport on which everything that is written in one turn of the event loop goes out at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
