"""A small server of a test, in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections, Serve


@asynccontextmanager
async def stream_server(serve: Serve, *, port: int = 0) -> AsyncIterator[int]:
    """Serve connections at 127.0.0.1, and give the port; leaving ends all of them.

    asyncio's own server of Python 3.11 leaves a connection open where `serve` fails or is cancelled. The garbage
    collection of a later test then finds it.
    """
    connections = LoopbackConnections(serve, "connection of a test's server")
    server = await asyncio.start_server(connections.accept, "127.0.0.1", port)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1]
    finally:
        await connections.end()
