"""An operator's SOCKS proxy leads to repositories, with and without a credential."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from tests.private_forge import PrivateForge
from tests.servers.certificates import Authority
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server
from tests.servers.lfs_store import LfsStore
from tests.servers.socks_proxy import socks_proxy

LARGE = b"large content " * 1000


@pytest.fixture
def forge(tmp_path: Path, signer: Authority) -> Iterator[PrivateForge]:
    place, store = PrivateForge(tmp_path, signer), LfsStore()
    place.sha = store.commit(place.repository, {"large.bin": LARGE})
    handler = place.asking.handler(store.handler(git_backend(tmp_path / "root")))
    with https_server(handler, signer.sign("forge")) as place.port:
        place.write_rules()
        yield place


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
async def test_a_private_repository_and_its_large_files_are_fetched_through_the_proxy(
    scheme: str, forge: PrivateForge
) -> None:
    with socks_proxy() as proxy:
        policy = forge.policy(ALL_PROXY=f"{scheme}://{proxy.name}")
        place = await forge.check_out(policy, CheckoutSpec(lfs=True))
    assert (place / "large.bin").read_bytes() == LARGE
    assert set(proxy.targets) == {f"127.0.0.1:{forge.port}"}
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}


async def test_git_itself_goes_through_the_proxy_where_no_credential_is_used(forge: PrivateForge) -> None:
    forge.write_rules("lake/**")
    with socks_proxy() as proxy:
        failed = await forge.failure(forge.policy(ALL_PROXY=f"socks5h://{proxy.name}"))
    assert "not there, or not for us without credentials" in failed.detail
    assert set(proxy.targets) == {f"127.0.0.1:{forge.port}"}


async def test_a_host_in_no_proxy_is_reached_directly(forge: PrivateForge) -> None:
    with socks_proxy() as proxy:
        await forge.check_out(forge.policy(ALL_PROXY=f"socks5h://{proxy.name}", NO_PROXY="127.0.0.1"))
    assert proxy.targets == []


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        ("asks for a password", "wants another way to sign in than none"),
        ("refuses", "refused the connection (2)"),
        ("garbage", "wants another way to sign in than none"),
        ("closes", "cannot be reached"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_named(manner: str, words: str, forge: PrivateForge) -> None:
    with socks_proxy(manner) as proxy:
        failed = await forge.failure(forge.policy(ALL_PROXY=f"socks5h://{proxy.name}"))
    assert words in failed.detail
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert forge.asking.requests == []


async def test_another_kind_of_proxy_is_refused_and_not_held_against_the_host(forge: PrivateForge) -> None:
    failed = await forge.failure(forge.policy(ALL_PROXY="socks4://127.0.0.1:1"))
    assert "is not fetched with its credential: ALL_PROXY: must be a proxy with" in failed.detail
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert not failed.host_away
    assert forge.asking.requests == []
