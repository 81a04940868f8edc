"""The counted bytes of bodies are those in memory."""

import tracemalloc
from typing import Any

import pytest

from solstice_common.http.server.bounds import Bounds
from solstice_common.http.server.connections import ServerConnections
from solstice_common.http.server.protocol import BoundedProtocol
from tests.http_transports import Socket, connected, loop_iterations

CONNECTIONS = 50
BODY_BYTES = 200_000
PIECE_BYTES = 10_000
HEAD = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n"


async def _answers_early(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _waits(_scope: Any, receive: Any, _send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize(
    ("app", "budget", "status"),
    [(_answers_early, 2**30, b"403"), (_waits, 1, b"503")],
    ids=["answered", "given-up"],
)
async def test_the_body_of_a_request_that_was_answered_is_not_held(
    app: Any, budget: int, status: bytes
) -> None:
    # The connections stay open for a while, so that the other sides can read their answers.
    shared = ServerConnections(Bounds(body_bytes=budget))
    opened: list[tuple[Any, Socket]] = []
    tracemalloc.start()
    try:
        for _ in range(CONNECTIONS):
            protocol, socket = connected(BoundedProtocol, app)
            assert isinstance(protocol, BoundedProtocol)
            protocol.shared = shared
            opened.append((protocol, socket))
            protocol.data_received(HEAD + b"x" * BODY_BYTES)
            await loop_iterations()
        # Bodies come in large pieces; what other threads of the suite allocate meanwhile is small.
        in_memory = sum(each.size for each in tracemalloc.take_snapshot().traces if each.size >= PIECE_BYTES)
    finally:
        tracemalloc.stop()
    assert all(b"".join(socket.written).startswith(b"HTTP/1.1 " + status) for _, socket in opened)
    assert shared.bodies.total == 0
    assert in_memory < CONNECTIONS * BODY_BYTES / 4
    for protocol, _ in opened:
        protocol.connection_lost(ConnectionResetError())
