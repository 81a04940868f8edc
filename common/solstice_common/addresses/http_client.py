"""Makes HTTP clients, with the environment's proxies for other machines."""

from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
from socksio.exceptions import SOCKSError

from solstice_common.addresses.broker_urls import ESCAPES
from solstice_common.errors import ConfigurationError

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def http_client(url: str, **options: Any) -> httpx2.AsyncClient:
    """Return a client for the server at `url`, with these options of httpx2.

    ConfigurationError, which repeats neither, when the URL or a proxy of the environment cannot be used.
    """
    try:
        # A proxy of the environment is for other machines, never for this one.
        return _Client(trust_env=urlsplit(url).hostname not in LOOPBACK, **options)
    except (httpx2.InvalidURL, ValueError):
        # The library's words may hold a part of a password.
        raise ConfigurationError(
            f"the URL of a server, or of a proxy (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), cannot be used; {ESCAPES}"
        ) from None


class _Client(httpx2.AsyncClient):
    """Reports a SOCKS proxy that answers nonsense as any other one that cannot be used."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            return await super().send(request, **options)
        except SOCKSError as error:
            raise httpx2.ConnectError(f"the SOCKS proxy: {error}", request=request) from None
