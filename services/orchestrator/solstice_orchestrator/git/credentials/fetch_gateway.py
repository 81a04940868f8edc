"""A loopback gateway for a command of git, which adds a credential.

git and its children can be read by every process of this user, and leave core files; the orchestrator cannot, and leaves
none. So git never gets the credential. It finds the gateway's address and token in its environment: both end with the
command, and fetch this one repository alone.
"""

import asyncio
import contextlib
import hmac
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from solstice_orchestrator.git.credentials.gateway_requests import (
    GatewayRequest,
    passed_answer,
    read_gateway_request,
)
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.http_heads import ProxyAnswer, read_answer
from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections
from solstice_orchestrator.git.credentials.upstream import HEAD_BYTES, NoConnection, Upstream

HEAD_SECONDS: Final = 10.0
"""The time for git's request."""
PIECE_BYTES: Final = 64 * 1024
CONNECTIONS: Final = 32
INTERIM_ANSWERS: Final = 8
END: Final = b"\r\n\r\n"
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
BAD_GATEWAY: Final = 502


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialedFetch:
    """The credential of a fetch, and the host that gets it."""

    credential: HttpCredential
    upstream: Upstream


@dataclass(slots=True, kw_only=True)
class FetchGateway:
    """An open gateway, as its user sees it; without a credential it is none."""

    fetch: CredentialedFetch | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables by which git finds it."""
    base: str = ""
    """The URL that git uses in place of the host's."""
    trouble: str = ""
    """What was wrong with the host or the credential, at last; empty when all went well."""
    is_replaced: bool = False
    """Whether the host has refused the credential, and a later fetch has another one."""

    def plain(self, text: str) -> str:
        """Return what git printed with the host's own URLs, and without the credential."""
        if self.fetch is None:
            return text
        origin = self.fetch.upstream.origin
        return self.fetch.credential.masked(text.replace(self.base, f"{origin}/"))


@asynccontextmanager
async def open_gateway(fetch: CredentialedFetch | None) -> AsyncIterator[FetchGateway]:
    """Open a gateway to the host of a fetch; without a credential, open nothing.

    Leaving ends all connections. Raises OSError when no socket is left.
    """
    gateway = FetchGateway(fetch=fetch)
    if fetch is None:
        yield gateway
        return
    expected = f"Basic {b64encode(f'solstice:{secrets.token_urlsafe(24)}'.encode()).decode()}"
    serving = _Serving(fetch, expected, gateway)
    connections = LoopbackConnections(serving.serve, "fetch gateway", CONNECTIONS)
    server = await asyncio.start_server(connections.accept, "127.0.0.1", 0, limit=HEAD_BYTES)
    try:
        gateway.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        gateway.environment = _configuration(
            {
                f"url.{gateway.base}.insteadOf": f"{fetch.upstream.origin}/",
                "http.extraHeader": f"Authorization: {expected}",
                "http.proxy": "",
            }
        )
        yield gateway
    finally:
        server.close()
        await connections.end()


def _configuration(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return git's configuration as variables: arguments can be read by every user of the machine."""
    variables = {"GIT_CONFIG_COUNT": str(len(options))}
    for number, (name, value) in enumerate(options.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


class _Refused(Exception):
    """A request ends here, with this status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class _Serving:
    """The connections of one gateway."""

    def __init__(self, fetch: CredentialedFetch, expected: str, gateway: FetchGateway) -> None:
        self._fetch, self._expected, self._gateway = fetch, expected.encode(), gateway
        self._path = fetch.upstream.parts.path.encode().decode("latin-1")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._exchange(await self._request(reader), reader, writer)
        except _Refused as refused:
            writer.write(
                f"HTTP/1.1 {refused.status} Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            with contextlib.suppress(OSError):
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            # git hung up, or another process sent what is no request.
            pass

    async def _request(self, reader: asyncio.StreamReader) -> GatewayRequest:
        async with asyncio.timeout(HEAD_SECONDS):
            request = read_gateway_request(await reader.readuntil(END))
        if request is None or not hmac.compare_digest(request.token.encode(), self._expected):
            raise _Refused(FORBIDDEN)
        if request.path != self._path:
            raise _Refused(FORBIDDEN)
        return request

    async def _exchange(
        self, request: GatewayRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        upstream = self._fetch.upstream
        try:
            from_host, to_host = await upstream.connect()
        except NoConnection as error:
            self._say(f"cannot be reached: {error}")
            raise _Refused(BAD_GATEWAY) from None
        with contextlib.closing(to_host):
            to_host.write(request.rewritten(upstream.parts.netloc, self._fetch.credential.authorization))
            sending = _send(reader, to_host, request.body_bytes)
            await _while(sending, self._answer(from_host, writer))

    async def _answer(self, from_host: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # git itself ends what stays silent or is slow (http.lowSpeedTime), and what is too large.
        answer = await self._head(from_host)
        if answer.status == UNAUTHORIZED:
            # git would ask for a user and password.
            if self._fetch.credential.refused is not None:
                self._fetch.credential.refused()
                self._gateway.is_replaced = True
            self._say("refused the credential (401): is it still valid?")
            raise _Refused(FORBIDDEN)
        self._gateway.trouble = ""
        if answer.status == FORBIDDEN:
            self._say("accepts no fetch of this repository with the credential (403)")
        writer.write(passed_answer(answer.line, answer.fields))
        while piece := await from_host.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()

    async def _head(self, from_host: asyncio.StreamReader) -> ProxyAnswer:
        try:
            for _ in range(INTERIM_ANSWERS):
                answer = read_answer(await from_host.readuntil(END))
                if answer.is_final:
                    return answer
        except (OSError, EOFError):
            self._say("closed the connection without an answer")
        except (ValueError, asyncio.LimitOverrunError):
            self._say("gave an answer that is not HTTP")
        raise _Refused(BAD_GATEWAY)

    def _say(self, what: str) -> None:
        self._gateway.trouble = f"{self._fetch.upstream.parts.netloc} {what}"


async def _while(sending: Coroutine[Any, Any, None], answering: Coroutine[Any, Any, None]) -> None:
    """Send until the answer has ended."""
    task = asyncio.create_task(sending, name="fetch gateway upwards")
    try:
        await answering
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Move so many bytes, or fewer when no more come."""
    while size and (piece := await reader.read(min(size, PIECE_BYTES))):
        writer.write(piece)
        await writer.drain()
        size -= len(piece)
