"""Clients of other servers: their proxies, and mistakes in URLs that hold passwords."""

import pytest

from solstice_common.addresses.http_client import http_client
from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import ForgeAccess

PROXIES = [
    "http://joe:heron#x@proxy.example:9",
    "http://joe:he\nron@proxy.example:9",
    "socks9://joe:heron@proxy.example:9",
]


@pytest.mark.parametrize("proxy", PROXIES, ids=ascii)
async def test_proxy_that_cannot_be_used_is_not_repeated(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY") as raised:
        async with OrchestratorClient.open("https://ci.example"):
            pass
    assert "ron" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY") as raised:
        async with Remote.open(ForgeAccess(name="acme", origin=Source.FORGEJO, url="https://forge.example")):
            pass
    assert "ron" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["http://joe:he\nron@ci.example", "http://joe:heron\udce9@ci.example"], ids=ascii
)
async def test_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="the URL of a server") as raised:
        async with OrchestratorClient.open(url):
            pass
    assert "ron" not in str(raised.value)


async def test_proxy_is_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXIES[0])
    async with http_client("http://127.0.0.1:9") as client:
        assert not client.trust_env
