"""The APIs of forges are called through an operator's SOCKS proxy."""

import gc

import pytest

from solstice_common.messages import Source
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import CallDone, CallPostponed, ForgeAccess
from tests.servers.forge_api import TOKEN, forge_api
from tests.servers.socks_proxy import socks_proxy

REPOSITORY = "river/app"
SHA = "a1" * 20
HOST = "forge.invalid"
"""Only the proxy knows its address."""
LEFT_OPEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""httpx2 leaves a connection to a proxy that failed to the garbage collector."""


@pytest.mark.parametrize("variable", ["ALL_PROXY", "HTTP_PROXY"])
@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
async def test_a_forge_is_called_through_the_proxy_which_looks_its_name_up(
    scheme: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with forge_api(Source.FORGEJO) as forge:
        forge.refs[REPOSITORY, "refs/heads/main"] = SHA
        with socks_proxy() as proxy:
            proxy.hosts[HOST] = "127.0.0.1"
            monkeypatch.setenv(variable, f"{scheme}://{proxy.name}")
            access = ForgeAccess(
                name="acme",
                origin=Source.FORGEJO,
                url=forge.url.replace("127.0.0.1", HOST),
                token=TOKEN,
            )
            async with Remote.open(access) as remote:
                found = await remote.ask(remote.dialect.find_commit(REPOSITORY, "refs/heads/main"))
    assert found == CallDone(SHA)
    assert set(proxy.targets) == {f"{HOST}:{forge.url.rpartition(':')[2]}"}


@LEFT_OPEN
@pytest.mark.parametrize("manner", ["refuses", "asks for a password", "garbage", "closes"])
async def test_a_proxy_in_trouble_is_a_call_for_later(manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socks_proxy(manner) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"socks5h://{proxy.name}")
        access = ForgeAccess(name="acme", origin=Source.FORGEJO, url=f"https://{HOST}", token=TOKEN)
        async with Remote.open(access) as remote:
            ended = await remote.ask(remote.dialect.find_commit(REPOSITORY, "refs/heads/main"))
    assert isinstance(ended, CallPostponed)
    gc.collect()


async def test_a_proxy_that_is_not_there_is_a_call_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1")
    access = ForgeAccess(name="acme", origin=Source.FORGEJO, url=f"https://{HOST}", token=TOKEN)
    async with Remote.open(access) as remote:
        ended = await remote.ask(remote.dialect.find_commit(REPOSITORY, "refs/heads/main"))
    assert isinstance(ended, CallPostponed)
