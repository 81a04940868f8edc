"""An answer is one write, whatever uvicorn makes of it."""

import asyncio
from typing import Any

import uvicorn

from solstice_forge.one_write import OneWriteProtocol

REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n%b\r\nab"


class Socket(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


async def _app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await receive()
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"yes"})


async def answered(*requests: bytes) -> Socket:
    """What was written in answer to requests that arrived together."""
    config = uvicorn.Config(_app, http=OneWriteProtocol, lifespan="off", log_config=None)
    config.load()
    protocol = OneWriteProtocol(config, uvicorn.server.ServerState(), {}, asyncio.get_running_loop())
    socket = Socket()
    protocol.connection_made(socket)
    protocol.data_received(b"".join(requests))
    for _ in range(20):
        await asyncio.sleep(0)
    protocol.connection_lost(ConnectionResetError())  # with None, it would close the transport itself
    return socket


async def test_head_and_body_of_an_answer_go_out_together() -> None:
    socket = await answered(REQUEST % b"")
    (answer,) = socket.written
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert answer.endswith(b"\r\n\r\nyes")
    assert not socket.closed


async def test_whatever_was_written_goes_out_before_the_connection_is_closed() -> None:
    socket = await answered(REQUEST % b"connection: close\r\n")
    assert b"".join(socket.written).endswith(b"\r\n\r\nyes")
    assert socket.closed


async def test_answers_keep_the_order_of_their_requests() -> None:
    socket = await answered(REQUEST % b"", REQUEST % b"")
    assert b"".join(socket.written).count(b"HTTP/1.1 202 ") == 2
