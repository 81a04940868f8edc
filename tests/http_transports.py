"""Connections without a network under uvicorn's protocols."""

import asyncio
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Socket(asyncio.Transport):
    """A transport that only records what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.late: list[bytes] = []
        """What was written before it was closed, and goes nowhere."""
        self.closed = False

    def write(self, data: Any) -> None:
        (self.late if self.closed else self.written).append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing more is written; what still arrives is ignored."""
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


def connected(kind: type[HttpToolsProtocol], app: Any) -> tuple[HttpToolsProtocol, Socket]:
    """The server's end of a new connection to `app`, and its transport."""
    config = uvicorn.Config(app, http=kind, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    protocol = kind(config, uvicorn.server.ServerState(), {}, asyncio.get_running_loop())
    socket = Socket()
    protocol.connection_made(socket)
    return protocol, socket


async def loop_iterations(count: int = 20) -> None:
    """Let other tasks run for some iterations of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def feed(protocol: HttpToolsProtocol, socket: Socket, pieces: Sequence[bytes]) -> None:
    """Let these pieces arrive one after the other, until the connection is closed."""
    for piece in pieces:
        if not socket.closed:
            protocol.data_received(piece)
            await loop_iterations()
    protocol.connection_lost(ConnectionResetError())  # with None, it would close the transport itself
    await loop_iterations()
