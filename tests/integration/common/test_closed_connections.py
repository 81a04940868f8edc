"""Answering a connection that the peer has reset makes the event loop log nothing.

It uses real sockets and uvloop, which warns of writes to a closed one.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from solstice_common.http.server.bounds import Bounds
from solstice_common.http.server.serving import http_server, listen
from tests.polling import wait_until

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
STEPS = 6
"""More iterations of the event loop than pass before it notices a closed connection."""


def reset(connection: socket.socket) -> None:
    """Reset the connection, as a process does that dies with unread answers."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0, named="the test")
    address = listener.getsockname()
    server = http_server(app, Bounds(), grace_seconds=1, refused=lambda _reason: None)
    task = asyncio.create_task(server.serve([listener]))
    await server.serving.wait()
    try:
        yield address
    finally:
        server.should_exit = True
        await task


async def problems_of(steps: int) -> list[dict[str, Any]]:
    """The log of the event loop when an application answers a reset connection.

    It answers after so many iterations of the loop.
    """
    log_lines: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: log_lines.append(context))
    answered = 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal answered
        for _ in range(steps):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        answered += 1

    async with served(app) as address:
        connection = socket.create_connection(address)
        # The first request shows that it was accepted; behind it the reset, before the loop reads either.
        connection.sendall(REQUEST)
        await wait_until(lambda: answered == 1)
        await asyncio.to_thread(connection.recv, 1000)
        connection.sendall(REQUEST)
        reset(connection)
        await wait_until(lambda: answered == 2)
        for _ in range(STEPS):
            await asyncio.sleep(0.001)
    return log_lines


@pytest.mark.parametrize("steps", range(STEPS))
def test_an_answer_to_a_connection_that_was_reset_is_dropped_in_silence(steps: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(problems_of(steps)) == []
