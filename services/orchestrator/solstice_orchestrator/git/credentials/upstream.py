"""Connect to the host of a repository, through the environment's proxy where there is one."""

import asyncio
import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from solstice_common.addresses.system_errors import system_words
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.git.credentials.http_heads import ProxyAnswer, read_answer
from solstice_orchestrator.git.credentials.proxy_choice import Proxy, proxy_of
from solstice_orchestrator.processes.egress.message_heads import joined

HEAD_BYTES: Final = 64 * 1024
CONNECT_SECONDS: Final = 20.0
_PORTS: Final = {"https": 443, "http": 80}
_END: Final = b"\r\n\r\n"
_SOCKS_HELLO: Final = b"\x05\x01\x00"
_SOCKS_WELCOME: Final = b"\x05\x00"
_SOCKS_CONNECT: Final = b"\x05\x01\x00\x03"
_SOCKS_VERSION: Final = 5
_SOCKS_NAME: Final = 3
_SOCKS_SIZES: Final = {1: 4, 4: 16}
"""The bytes of an address in an answer, by its kind: IPv4 and IPv6."""


class NoConnection(Exception):
    """The host, or a proxy before it, cannot be reached; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The host of a repository, and the way to it."""

    repo_url: str
    addresses: tuple[str, ...] = ()
    """The checked addresses; empty: any that its name has."""
    environment: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.repo_url)

    @property
    def origin(self) -> str:
        """The protocol, host and port, as in the repository's URL."""
        return f"{self.parts.scheme}://{self.parts.netloc}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection whose certificate was verified; raises NoConnection."""
        host = self.parts.hostname or ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                proxy = proxy_of(self.repo_url, self.environment)
                if proxy is None:
                    return await self._directly(host)
                return await self._through(proxy, host)
        except TimeoutError:
            raise NoConnection(f"no connection within {CONNECT_SECONDS:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NoConnection(f"its certificate cannot be trusted ({error.verify_message})") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, ConfigurationError) as error:
            raise NoConnection(system_words(str(error)) or str(error) or type(error).__name__) from None

    @property
    def _port(self) -> int:
        return self.parts.port or _PORTS[self.parts.scheme]

    def _tls(self) -> ssl.SSLContext | None:
        return _context(self.environment.get("GIT_SSL_CAINFO")) if self.parts.scheme == "https" else None

    async def _directly(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self._tls()
        name = host if tls else None
        *others, last = self.addresses or (host,)
        for address in others:
            try:
                return await asyncio.open_connection(
                    address, self._port, ssl=tls, server_hostname=name, limit=HEAD_BYTES
                )
            except OSError:
                continue
        return await asyncio.open_connection(
            last, self._port, ssl=tls, server_hostname=name, limit=HEAD_BYTES
        )

    async def _through(self, proxy: Proxy, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = _context(self.environment.get("GIT_SSL_CAINFO")) if proxy.has_tls else None
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=tls, limit=HEAD_BYTES)
        try:
            if proxy.is_socks:
                await _ask_socks(reader, writer, proxy, host, self._port)
            else:
                target = f"{f'[{host}]' if ':' in host else host}:{self._port}"
                account = [("Proxy-Authorization", proxy.authorization)] if proxy.authorization else []
                writer.write(joined(f"CONNECT {target} HTTP/1.1", [("Host", target), *account]))
                _check(read_answer(await reader.readuntil(_END)), proxy)
            own = self._tls()
            if own is not None:
                await writer.start_tls(own, server_hostname=host)
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _check(answer: ProxyAnswer, proxy: Proxy) -> None:
    if not answer.is_success:
        raise NoConnection(f"the proxy {proxy.name} refused the connection ({answer.status})")


async def _ask_socks(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, host: str, port: int
) -> None:
    """Ask a SOCKS proxy for a connection, without user and password (RFC 1928).

    The proxy looks the name up, as it does for an HTTP proxy.
    """
    writer.write(_SOCKS_HELLO)
    if await reader.readexactly(2) != _SOCKS_WELCOME:
        raise NoConnection(f"the proxy {proxy.name} wants another way to sign in than none")
    name = host.encode("ascii")
    writer.write(_SOCKS_CONNECT + bytes([len(name)]) + name + port.to_bytes(2, "big"))
    version, status, _, kind = await reader.readexactly(4)
    if version != _SOCKS_VERSION or kind not in {*_SOCKS_SIZES, _SOCKS_NAME}:
        raise NoConnection(f"the proxy {proxy.name} gave an answer that is not SOCKS")
    if status:
        raise NoConnection(f"the proxy {proxy.name} refused the connection ({status})")
    size = _SOCKS_SIZES.get(kind) or (await reader.readexactly(1))[0]
    await reader.readexactly(size + 2)


@functools.lru_cache(maxsize=4)
def _context(cafile: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile or None)
