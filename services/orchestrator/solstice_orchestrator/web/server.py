"""Serve the application on one address, as a part of a larger process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import ASGIApp

from solstice_common.http.bounds import Bounds
from solstice_common.http.serving import http_server, listen
from solstice_orchestrator.web.formats.sse import OpenStreams

GRACE_SECONDS: Final = 3
_DEFAULT: Final = Bounds()


def _uncounted(_reason: str) -> None:
    pass


@asynccontextmanager
async def serving(
    app: ASGIApp,
    streams: OpenStreams,
    *,
    host: str,
    port: int,
    bounds: Bounds = _DEFAULT,
    refused: Callable[[str], None] = _uncounted,
) -> AsyncIterator[str]:
    """Serve until left; yield the base URL (with the real port for port 0).

    Leaving ends open event streams and lets other requests finish for GRACE_SECONDS. Raises ConfigurationError when
    the server cannot listen on the address.
    """
    listening = listen(host, port, named="ORCHESTRATOR_HOST, ORCHESTRATOR_PORT")
    place = f"[{host}]" if ":" in host else host
    server = http_server(app, bounds, grace_seconds=GRACE_SECONDS, refused=refused)
    # Not a TaskGroup: an exception of the caller's block must leave it unchanged, not in an exception group.
    task = asyncio.create_task(server.serve([listening]), name="web-server")
    try:
        await server.serving.wait()
        if not task.done():
            yield f"http://{place}:{listening.getsockname()[1]}"
    finally:
        streams.close()
        server.should_exit = True
        await task
