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
from solstice_orchestrator.git.credentials.http_heads import ProxyAnswer, joined, read_answer
from solstice_orchestrator.git.credentials.proxy_choice import Proxy, http_proxy_of

HEAD_BYTES: Final = 64 * 1024
CONNECT_SECONDS: Final = 20.0
_PORTS: Final = {"https": 443, "http": 80}
_END: Final = b"\r\n\r\n"


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
                proxy = http_proxy_of(self.repo_url, self.environment)
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


@functools.lru_cache(maxsize=4)
def _context(cafile: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile or None)
