"""Serve the application on one address, inside a process that has its own life."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.web.sse import Streams

GRACE_SECONDS = 3


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process that holds us says when to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.serving.set()


@asynccontextmanager
async def serving(app: ASGIApp, streams: Streams, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve until left, and give the base URL (with the real port for port 0).

    Leaving ends open event streams and lets other requests finish for GRACE_SECONDS. Raises ConfigurationError when
    the address cannot be had.
    """
    listening = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Who is on this machine may do more, and is known by the connection, not by what somebody writes.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    # Not a TaskGroup: what goes wrong in the caller's block must leave it as it is, not in a group.
    task = asyncio.create_task(server.serve([listening]), name="web-server")
    try:
        await server.serving.wait()
        if not task.done():
            yield f"http://{place}:{listening.getsockname()[1]}"
    finally:
        streams.close()
        server.should_exit = True
        await task


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host if host != "localhost" else "127.0.0.1", port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address"
        ) from None
    return listening
