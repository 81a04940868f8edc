"""Serves an application through uvicorn on one address, for both services."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from solstice_common.errors import ConfigurationError
from solstice_common.http.server.application import UNENFORCED, BoundedApplication
from solstice_common.http.server.bounds import HEAD_BYTES, Bounds, connections_allowed
from solstice_common.http.server.connections import ServerConnections
from solstice_common.runtime.public_interfaces import public_only
from solstice_common.settings import HttpSettings
from solstice_common.telemetry.log_events import LogEvent

if TYPE_CHECKING:
    from solstice_common.http.server.protocol import BoundedProtocol

KEEP_ALIVE_SECONDS: Final = 65
BACKLOG: Final = 2048
RECEIVE_BYTES: Final = 32 * 1024
"""The receive buffer of a connection that uvicorn's own protocol reads.

It bounds what one read returns: that protocol copies what it reads several times, for every connection at once.
"""
log = structlog.get_logger(__name__)


class HttpServer(uvicorn.Server):
    """A server that leaves signals to its process, and closes its own sockets."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()
        """Set once requests are accepted, or once the start has failed."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except asyncio.CancelledError:
            # Uvicorn closes nothing when it is cancelled, and the loop would go on listening to closed sockets.
            for server in getattr(self, "servers", []):  # none when it had not begun
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bounds_of(settings: HttpSettings, *, largest_body: int = 0, servers: int = 1) -> Bounds:
    """Return the bounds of the settings, within the descriptors of the process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Bounds(
        connections=connections_allowed(settings.http_connections, descriptors, servers=servers),
        head_seconds=settings.http_head_seconds,
        silence_seconds=settings.http_silence_seconds,
        body_bytes=max(settings.http_body_bytes, largest_body),
    )


def bounded_protocol() -> "type[BoundedProtocol]":
    """Import uvicorn's protocol with our bounds."""
    from solstice_common.http.server.protocol import BoundedProtocol  # noqa: PLC0415  see `http_server`

    return BoundedProtocol


def http_server(
    app: ASGIApp,
    bounds: Bounds,
    *,
    grace_seconds: float,
    refused: Callable[[str], None],
    protocol: "Callable[[], type[BoundedProtocol]]" = bounded_protocol,
) -> HttpServer:
    """Return the server for an application.

    It calls `refused` with the reason of each refusal of its own. `protocol` imports the class that it
    returns, so it is called only where uvicorn's inside is used.

    With uvicorn's public interface alone, its settings bound heads and connections, and the application
    bounds what it can; the missing bounds are logged.
    """
    is_public = public_only("uvicorn")
    if is_public:
        chosen: Any = "h11"
        app = BoundedApplication(app, bounds, refused=refused)
        log.warning(LogEvent.HTTP_UNBOUNDED, open=UNENFORCED)
    else:
        chosen = partial(protocol(), connections=ServerConnections(bounds, refused=refused))
    return HttpServer(
        uvicorn.Config(
            app,
            http=chosen,
            h11_max_incomplete_event_size=HEAD_BYTES,
            limit_concurrency=bounds.connections if is_public else None,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            # Callers on this machine may do more: only the connection decides who is one, never a header.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace_seconds)),
        )
    )


def listen(host: str, port: int, *, named: str) -> socket.socket:
    """Return a listening socket, made before anything else.

    So a port in use, the most common mistake, is reported first.

    Raises ConfigurationError, with the names of the settings in `named`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Accepted sockets inherit TCP_NODELAY, which asyncio sets only with the protocol given. Without it every answer
    # waits 40 ms for the other side's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if public_only("uvicorn"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        listener.bind((host if host != "localhost" else "127.0.0.1", port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{named}: cannot listen on {host}:{port}: {error.strerror or error}; "
            "take another port, or 0 for any free one"
        ) from error
    return listener
