"""A loopback proxy for a command of git, which adds the real proxy's password.

Other processes of this user can read git's environment. There they find only its address and token: both end with the
command, and lead to the repository's own server alone.
"""

import asyncio
import contextlib
import functools
import hmac
import secrets
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from solstice_common.addresses.system_errors import system_words
from solstice_orchestrator.git.credentials.http_heads import (
    ProxyAnswer,
    ProxyRequest,
    authorization_of,
    read_answer,
    read_request,
)
from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections
from solstice_orchestrator.git.credentials.proxy_choice import ProxiedFetch, Proxy

HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 10.0
"""The time for git's request."""
ANSWER_SECONDS: Final = 30.0
"""The time for a connection to the proxy, and for its answer to CONNECT."""
PIECE_BYTES: Final = 64 * 1024
CONNECTIONS: Final = 32
USER: Final = "solstice"
END: Final = b"\r\n\r\n"
PROXY_ASKS: Final = 407
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
BAD_GATEWAY: Final = 502
GATEWAY_TIMEOUT: Final = 504


@dataclass(slots=True)
class LocalProxy:
    """An open local proxy, as its user sees it."""

    environment: Mapping[str, str]
    """Variables by which git finds it."""
    trouble: str = ""
    """What was wrong with the proxy, at last; empty when it did its work."""


class _Refused(Exception):
    """A request ends here, with this status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


@asynccontextmanager
async def open_local_proxy(
    fetch: ProxiedFetch | None, *, cafile: str | None = None
) -> AsyncIterator[LocalProxy]:
    """Open a local proxy in front of a fetch's proxy; without one, open nothing.

    `cafile` names further certificates of authorities that may sign for the proxy. Leaving ends all connections.
    Raises OSError when no socket is left.
    """
    if fetch is None:
        yield LocalProxy({})
        return
    token = secrets.token_urlsafe(24)
    local = LocalProxy({})
    serving = _Serving(fetch, f"Basic {b64encode(f'{USER}:{token}'.encode()).decode()}", local, cafile)
    connections = LoopbackConnections(serving.serve, "local proxy", CONNECTIONS)
    server = await asyncio.start_server(connections.accept, "127.0.0.1", 0, limit=HEAD_BYTES)
    try:
        port = server.sockets[0].getsockname()[1]
        local.environment = {
            fetch.variable: f"http://{USER}:{token}@127.0.0.1:{port}",
            "GIT_HTTP_PROXY_AUTHMETHOD": "basic",
        }
        yield local
    finally:
        server.close()
        await connections.end()


class _Serving:
    """The connections of one local proxy."""

    def __init__(self, fetch: ProxiedFetch, expected: str, local: LocalProxy, cafile: str | None) -> None:
        self._fetch, self._expected, self._local, self._cafile = fetch, expected.encode(), local, cafile

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(await self._request(reader), reader, writer)
        except _Refused as refused:
            asks = 'Proxy-Authenticate: Basic realm="local proxy"\r\n' if refused.status == PROXY_ASKS else ""
            writer.write(
                f"HTTP/1.1 {refused.status} Local Proxy\r\n{asks}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            with contextlib.suppress(OSError):
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            # git hung up, or another process sent what is no request.
            pass

    async def _request(self, reader: asyncio.StreamReader) -> ProxyRequest:
        async with asyncio.timeout(HEAD_SECONDS):
            request = read_request(await reader.readuntil(END))
        if not hmac.compare_digest(authorization_of(request).encode(), self._expected):
            raise _Refused(PROXY_ASKS)
        if request.target != self._fetch.target:
            raise _Refused(FORBIDDEN)
        return request

    async def _pass_on(
        self, request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy = self._fetch.proxy
        self._say("has not answered")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                from_proxy, to_proxy = await self._connect(proxy)
        except TimeoutError:
            self._say(f"cannot be reached: no connection within {ANSWER_SECONDS:g} s")
            raise _Refused(GATEWAY_TIMEOUT) from None
        except (OSError, ValueError) as error:
            self._say(f"cannot be reached: {_words(error)}")
            raise _Refused(BAD_GATEWAY) from None
        with contextlib.closing(to_proxy):
            to_proxy.write(request.rewritten(proxy.authorization))
            if request.is_tunnel:
                await self._tunnel(from_proxy, to_proxy, reader, writer)
            else:
                await self._exchange(request.body_bytes, from_proxy, to_proxy, reader, writer)

    async def _connect(self, proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = _tls(self._cafile) if proxy.has_tls else None
        return await asyncio.open_connection(proxy.host, proxy.port, ssl=context, limit=HEAD_BYTES)

    async def _tunnel(
        self,
        from_proxy: asyncio.StreamReader,
        to_proxy: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._answer(from_proxy)
                while not answer.is_final:
                    answer = await self._answer(from_proxy)
        except TimeoutError:
            self._say(f"did not answer within {ANSWER_SECONDS:g} s")
            raise _Refused(GATEWAY_TIMEOUT) from None
        if not answer.is_success:
            self._say(_refusal(answer))
            raise _Refused(BAD_GATEWAY if answer.status == PROXY_ASKS else answer.status)
        self._local.trouble = ""
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _both_ways(_pump(reader, to_proxy), _pump(from_proxy, writer))

    async def _exchange(
        self,
        body_bytes: int,
        from_proxy: asyncio.StreamReader,
        to_proxy: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async def answer() -> None:
            head = await self._answer(from_proxy)
            while not head.is_final:
                writer.write(head.rewritten())
                head = await self._answer(from_proxy)
            if head.status == PROXY_ASKS:
                self._say(_refusal(head))
                raise _Refused(BAD_GATEWAY)
            self._local.trouble = ""
            writer.write(head.rewritten())
            await _pump(from_proxy, writer)

        # git itself ends what stays silent (http.lowSpeedTime). Nothing behind the body is passed on: it could be a
        # request for another server.
        await _both_ways(_send(reader, to_proxy, body_bytes), answer())

    async def _answer(self, from_proxy: asyncio.StreamReader) -> ProxyAnswer:
        try:
            return read_answer(await from_proxy.readuntil(END))
        except (OSError, EOFError):
            self._say("closed the connection without an answer")
        except (ValueError, asyncio.LimitOverrunError):
            self._say("gave an answer that is not HTTP")
        raise _Refused(BAD_GATEWAY)

    def _say(self, what: str) -> None:
        self._local.trouble = f"the proxy {self._fetch.proxy.name} {what}"


def _refusal(answer: ProxyAnswer) -> str:
    if answer.status != PROXY_ASKS:
        return f"refused the connection ({answer.status})"
    offered = answer.authentication
    if offered and "basic" not in offered.lower().split(", "):
        return f"asks for {offered}, and only Basic is supported ({PROXY_ASKS})"
    return f"refused the user or password of its URL ({PROXY_ASKS})"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    return system_words(str(error)) or type(error).__name__


@functools.lru_cache(maxsize=4)
def _tls(cafile: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if cafile:
        context.load_verify_locations(cafile)
    return context


async def _both_ways(upwards: Coroutine[Any, Any, None], downwards: Coroutine[Any, Any, None]) -> None:
    """Move bytes in both directions until the proxy has sent its last."""
    sending = asyncio.create_task(upwards, name="local proxy upwards")
    try:
        await downwards
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Move so many bytes, or fewer when no more come."""
    while size and (piece := await reader.read(min(size, PIECE_BYTES))):
        writer.write(piece)
        await writer.drain()
        size -= len(piece)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Move all bytes, and pass their end on."""
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
