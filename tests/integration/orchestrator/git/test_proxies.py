"""Real git behind a real proxy that asks for a password, which git never sees."""

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials import local_proxy
from solstice_orchestrator.git.credentials.local_proxy import open_local_proxy
from solstice_orchestrator.git.credentials.proxy_choice import ProxiedFetch, proxied_fetch
from solstice_orchestrator.git.heads import Branch, head_of
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.certificates import Authority, authority
from tests.servers.git_servers import git_backend, http_server
from tests.servers.http_proxy import HttpProxy, http_proxy, https_server

MARK = "plaNted"
PASSWORD = f"{MARK}#{MARK}[{MARK}@{MARK}:%{MARK} {MARK}/?"
USER = f"joe {MARK}"
METHODS = {"http": {"GET", "POST"}, "https": {"CONNECT"}}


class Harbour:
    """A repository on two servers, and a shim of git that records its environment."""

    def __init__(self, folder: Path, signer: Authority) -> None:
        self.folder, self.signer = folder, signer
        self.repository = Repository(folder / "root" / "app")
        self.sha = self.repository.commit({"a.txt": "ahoy\n"})
        self.recorded = folder / "environments"
        (folder / "bin").mkdir()
        shim = folder / "bin" / "git"
        shim.write_text(f'#!/bin/sh\nenv >> {self.recorded}\nPATH="{os.environ["PATH"]}" exec git "$@"\n')
        shim.chmod(0o755)
        self.urls: dict[str, str] = {}

    def policy(self, variables: Mapping[str, str], seconds: float = 30.0) -> GitPolicy:
        return GitPolicy(
            protocols=("http", "https"),
            timeout_seconds=seconds,
            planning_timeout_seconds=seconds,
            environment={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "GIT_SSL_CAINFO": str(self.signer.certificate),
                **variables,
            },
        )

    async def check_out(self, scheme: str, policy: GitPolicy) -> str:
        """The file of the commit, fetched by this scheme."""
        request = job_request(repo_url=self.urls[scheme], commit_sha=self.sha, ref="refs/heads/main")
        source = self.folder / "source"
        await check_out(request, source, policy=policy, scratch=self.folder / "scratch")
        return (source / "a.txt").read_text()

    async def failure(self, scheme: str, policy: GitPolicy) -> CheckoutFailed:
        with pytest.raises(CheckoutFailed) as caught:
            await self.check_out(scheme, policy)
        return caught.value


@pytest.fixture
def harbour(tmp_path: Path, signer: Authority) -> Iterator[Harbour]:
    place = Harbour(tmp_path, signer)
    backend = git_backend(tmp_path / "root")
    with http_server(backend) as plain, https_server(backend, signer.sign("forge")) as secured:
        place.urls = {
            "http": f"http://127.0.0.1:{plain}/app/.git",
            "https": f"https://127.0.0.1:{secured}/app/.git",
        }
        yield place


@pytest.fixture(params=["http proxy", "https proxy"])
def proxy(request: pytest.FixtureRequest, signer: Authority) -> Iterator[HttpProxy]:
    certificate = signer.sign("proxy") if request.param == "https proxy" else None
    with http_proxy(certificate=certificate, user=USER, password=PASSWORD) as running:
        yield running


def variable(scheme: str) -> str:
    return {"http": "http_proxy", "https": "HTTPS_PROXY"}[scheme]


def hides(text: str, *proxies: HttpProxy) -> bool:
    """Whether a text holds no piece of an account."""
    encoded = [b64encode(each.user.encode()).decode()[:8] for each in proxies]
    return not any(word in text for word in (MARK, *encoded, *(each.authorization for each in proxies)))


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_git_fetches_through_a_proxy_whose_password_it_never_sees(
    scheme: str, harbour: Harbour, proxy: HttpProxy
) -> None:
    policy = harbour.policy({variable(scheme): proxy.url(), "ALL_PROXY": proxy.url(password="other" + MARK)})
    assert await harbour.check_out(scheme, policy) == "ahoy\n"
    assert set(proxy.authorizations) == {proxy.authorization}
    assert {line.split()[0] for line in proxy.requests} == METHODS[scheme]
    environments = harbour.recorded.read_text()
    assert f"{variable(scheme).lower()}=http://solstice:" in environments
    assert "ALL_PROXY" not in environments
    assert hides(environments, proxy)


async def test_a_branch_is_looked_up_through_the_proxy(harbour: Harbour, proxy: HttpProxy) -> None:
    branch = Branch(repo_url=harbour.urls["https"], ref="refs/heads/main")
    policy = harbour.policy({"all_proxy": proxy.url()})
    assert await head_of(branch, policy=policy, scratch=harbour.folder / "scratch") == harbour.sha
    assert {line.split()[0] for line in proxy.requests} == {"CONNECT"}
    assert hides(harbour.recorded.read_text(), proxy)


async def test_no_proxy_holds_for_a_proxy_with_a_password(harbour: Harbour, proxy: HttpProxy) -> None:
    policy = harbour.policy({"HTTPS_PROXY": proxy.url(), "no_proxy": "127.0.0.1"})
    assert await harbour.check_out("https", policy) == "ahoy\n"
    assert proxy.requests == []
    assert hides(harbour.recorded.read_text(), proxy)


async def test_a_proxy_without_a_password_is_gits_own_affair(harbour: Harbour) -> None:
    with http_proxy(user="", password="", manner="503") as proxy:
        failed = await harbour.failure("https", harbour.policy({"HTTPS_PROXY": f"http://{proxy.name}"}))
    assert len(proxy.requests) >= 1
    assert set(proxy.authorizations) == {""}
    assert f"HTTPS_PROXY=http://{proxy.name}\n" in harbour.recorded.read_text()
    assert failed.host_away


MANNERS = {
    "403": "refused the connection (403)",
    "503": "refused the connection (503)",
    "closes": "closed the connection without an answer",
    "garbage": "gave an answer that is not HTTP",
    "endless": "gave an answer that is not HTTP",
    "digest": "asks for Digest, and only Basic is supported (407)",
}


@pytest.mark.parametrize(("manner", "message"), MANNERS.items(), ids=MANNERS.keys())
async def test_a_failure_names_the_proxy_and_no_password(manner: str, message: str, harbour: Harbour) -> None:
    with http_proxy(manner=manner, user=USER, password=PASSWORD) as proxy:
        failed = await harbour.failure("https", harbour.policy({"HTTPS_PROXY": proxy.url()}))
    assert failed.detail.endswith(f"; the proxy {proxy.name} {message}")
    assert (failed.reason, failed.host_away) == (Reason.CHECKOUT_FAILED, True)
    assert hides(failed.detail + harbour.recorded.read_text(), proxy)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_refused_password_is_the_proxys_refusal(
    scheme: str, harbour: Harbour, proxy: HttpProxy
) -> None:
    policy = harbour.policy({variable(scheme): proxy.url(password=f"wrong {MARK}")})
    failed = await harbour.failure(scheme, policy)
    assert failed.detail.endswith(f"; the proxy {proxy.name} refused the user or password of its URL (407)")
    assert (failed.reason, failed.host_away) == (Reason.CHECKOUT_FAILED, True)
    assert hides(failed.detail, proxy)


async def test_a_proxy_that_is_not_there_is_named(harbour: Harbour) -> None:
    with http_proxy(user=USER, password=PASSWORD) as proxy:
        pass
    failed = await harbour.failure("https", harbour.policy({"HTTPS_PROXY": proxy.url()}))
    assert failed.detail.endswith(f"; the proxy {proxy.name} cannot be reached: Connection refused")
    assert hides(failed.detail, proxy)


async def test_a_proxy_with_a_foreign_certificate_gets_no_password(harbour: Harbour, tmp_path: Path) -> None:
    with http_proxy(
        certificate=authority(tmp_path / "other").sign("proxy"), user=USER, password=PASSWORD
    ) as proxy:
        failed = await harbour.failure("https", harbour.policy({"HTTPS_PROXY": proxy.url()}))
    assert f"the proxy {proxy.name} cannot be reached: its certificate cannot be trusted" in failed.detail
    assert proxy.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_silent_proxy_costs_no_more_than_the_time_of_the_checkout(
    scheme: str, harbour: Harbour
) -> None:
    with http_proxy(manner="silent", user=USER, password=PASSWORD) as proxy:
        failed = await harbour.failure(scheme, harbour.policy({variable(scheme): proxy.url()}, 8.0))
    assert (failed.reason, failed.host_away) == (Reason.CHECKOUT_FAILED, True)
    assert len(proxy.requests) >= 1
    assert not [task for task in asyncio.all_tasks() if "local proxy" in task.get_name()]


async def test_a_silent_proxy_is_given_up(harbour: Harbour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_proxy, "ANSWER_SECONDS", 4.0)
    with http_proxy(manner="silent", user=USER, password=PASSWORD) as proxy:
        failed = await harbour.failure("https", harbour.policy({"HTTPS_PROXY": proxy.url()}))
    assert failed.detail.endswith(f"; the proxy {proxy.name} did not answer within 4 s")


async def exchanged(address: str, request: bytes) -> bytes:
    """All that the local proxy answers to these bytes."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def fetch_through(proxy: HttpProxy, url: str) -> ProxiedFetch:
    fetch = proxied_fetch(url, {"https_proxy": proxy.url(), "http_proxy": proxy.url()})
    assert fetch is not None
    return fetch


def authorized(address: str) -> str:
    parts = urlsplit(address)
    account = b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    return f"Proxy-Authorization: Basic {account}\r\n"


STRANGERS = {
    "no token": ("CONNECT forge.invalid:443 HTTP/1.1\r\n{none}\r\n", "407"),
    "another token": ("CONNECT forge.invalid:443 HTTP/1.1\r\nProxy-Authorization: Basic eDp5\r\n\r\n", "407"),
    "the token twice": ("CONNECT forge.invalid:443 HTTP/1.1\r\n{token}{token}\r\n", "407"),
    "another host": ("CONNECT metadata.invalid:443 HTTP/1.1\r\n{token}\r\n", "403"),
    "another port": ("CONNECT forge.invalid:22 HTTP/1.1\r\n{token}\r\n", "403"),
    "another host, plain": ("GET http://metadata.invalid/ HTTP/1.1\r\n{token}\r\n", "403"),
    "another host behind an @": (
        "GET http://forge.invalid:443@metadata.invalid/ HTTP/1.1\r\n{token}\r\n",
        "403",
    ),
    "no request to a proxy": ("GET /etc/passwd HTTP/1.1\r\n{token}\r\n", ""),
    "no head": ("\r\n\r\n", ""),
    "a folded line": ("CONNECT forge.invalid:443 HTTP/1.1\r\n{token} x\r\n\r\n", ""),
    "a bare line feed": ("CONNECT forge.invalid:443 HTTP/1.1\r\nA: b\nC: d\r\n{token}\r\n", ""),
    "a body of unknown size": (
        "POST http://forge.invalid:443/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{token}\r\n",
        "",
    ),
    "two sizes": (
        "POST http://forge.invalid:443/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n{token}\r\n",
        "",
    ),
    "a large head": ("CONNECT forge.invalid:443 HTTP/1.1\r\n" + "A: b\r\n" * 20_000 + "{token}\r\n", ""),
}


@pytest.mark.parametrize("kind", STRANGERS)
async def test_no_other_process_uses_the_local_proxy(kind: str, proxy: HttpProxy) -> None:
    head, status = STRANGERS[kind]
    async with open_local_proxy(fetch_through(proxy, "https://forge.invalid/app.git")) as opened:
        address = opened.environment["https_proxy"]
        request = head.replace("{token}", authorized(address)).replace("{none}", "").encode()
        answer = (await exchanged(address, request)).decode()
    assert answer.split()[1:2] == ([status] if status else [])
    assert proxy.requests == []
    assert hides(answer, proxy)


async def test_nothing_behind_a_request_reaches_the_proxy(harbour: Harbour, proxy: HttpProxy) -> None:
    host = urlsplit(harbour.urls["http"]).netloc
    async with open_local_proxy(
        fetch_through(proxy, harbour.urls["http"]), cafile=str(harbour.signer.certificate)
    ) as opened:
        address = opened.environment["http_proxy"]
        first = f"GET http://{host}/app/.git/HEAD HTTP/1.1\r\n{authorized(address)}\r\n"
        answer = await exchanged(address, (first + first.replace(host, "metadata.invalid")).encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer
    assert len(proxy.requests) == 1


async def test_the_token_ends_with_the_command(proxy: HttpProxy) -> None:
    fetch = fetch_through(proxy, "https://forge.invalid/app.git")
    async with open_local_proxy(fetch) as first, open_local_proxy(fetch) as second:
        addresses = [first.environment["https_proxy"], second.environment["https_proxy"]]
        request = f"CONNECT forge.invalid:443 HTTP/1.1\r\n{authorized(addresses[0])}\r\n".encode()
        assert (await exchanged(addresses[1], request)).split()[1] == b"407"
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await exchanged(address, request)
    assert proxy.requests == []


async def test_who_sends_nothing_is_let_go(proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_proxy, "HEAD_SECONDS", 0.2)
    async with open_local_proxy(fetch_through(proxy, "https://forge.invalid/app.git")) as opened:
        assert await exchanged(opened.environment["https_proxy"], b"CONNECT ") == b""


async def test_connections_beyond_the_bound_are_closed(proxy: HttpProxy) -> None:
    async with open_local_proxy(fetch_through(proxy, "https://forge.invalid/app.git")) as opened:
        parts = urlsplit(opened.environment["https_proxy"])
        async with asyncio.timeout(60):
            streams = [
                await asyncio.open_connection(parts.hostname, parts.port)
                for _ in range(local_proxy.CONNECTIONS + 1)
            ]
            ended = [asyncio.create_task(reader.read()) for reader, _ in streams]
            done, waiting = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for _, writer in streams:
            writer.close()
    await asyncio.wait(waiting)
