"""Real git fetches private repositories with credentials that it never sees."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed
from solstice_orchestrator.git.commit_ancestry import ask_repository
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS
from solstice_orchestrator.git.credentials.fetch_gateway import CredentialedFetch, open_gateway
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.upstream import Upstream
from solstice_orchestrator.git.heads import Branch, head_of
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from solstice_orchestrator.superseding.push_order import OrderQuestion
from tests.git_memory import git_memory
from tests.private_forge import TOKEN, PrivateForge
from tests.servers.certificates import Authority, authority
from tests.servers.git_servers import answering, git_backend, http_server
from tests.servers.http_proxy import http_proxy, https_server


@pytest.fixture(scope="module")
def certificate(signer: Authority) -> tuple[Path, Path]:
    return signer.sign("forge", "IP:127.0.0.1,DNS:forge.invalid")


@pytest.fixture
def forge(tmp_path: Path, signer: Authority, certificate: tuple[Path, Path]) -> Iterator[PrivateForge]:
    place = PrivateForge(tmp_path, signer)
    with https_server(
        place.asking.handler(git_backend(tmp_path / "root")),
        certificate,
    ) as place.port:
        place.write_rules()
        yield place


async def checkout(forge: PrivateForge) -> object:
    return (await forge.check_out() / "hello.txt").read_text() == "ahoy\n"


async def plan(forge: PrivateForge) -> object:
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, forge.policy(), forge.folder / "scratch")
        return await files.of(forge.request(), [".solstice/job.sh"]) == {".solstice/job.sh": b"true\n"}


async def head(forge: PrivateForge) -> object:
    branch = Branch(repo_url=forge.url, ref="refs/heads/main")
    return await head_of(branch, policy=forge.policy(), scratch=forge.folder / "scratch") == forge.sha


async def order(forge: PrivateForge) -> object:
    older, forge.sha = forge.sha, forge.repository.commit({"hello.txt": "later"})
    question = OrderQuestion(commit_sha=older, newest_sha=forge.sha, before_sha=None)
    ancestry = await ask_repository(
        forge.request(ref=None), question, policy=forge.policy(), scratch=forge.folder / "scratch"
    )
    return ancestry.in_newest


WAYS = pytest.mark.parametrize("fetch", [checkout, plan, head, order])


@WAYS
async def test_git_fetches_with_a_token_that_none_of_its_processes_ever_holds(
    fetch: Callable[[PrivateForge], Any], forge: PrivateForge
) -> None:
    found: list[str] = []
    seen: set[str] = set()
    forms = (TOKEN.encode(), forge.asking.authorization.removeprefix("Basic ").encode())

    def search(_: str) -> None:
        for where, content in git_memory(forge.folder):
            if b"Authorization: Basic " in content or "arguments" in where:
                # The gateway's own: what looks like a credential can be found in memory.
                seen.add(where.partition(": ")[2].split(" ")[0])
            found.extend([where] if any(form in content for form in forms) else [])

    forge.asking.before_answer = search
    assert await fetch(forge)
    assert seen == {"environment", "arguments", "memory"}
    assert found == []
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}


async def test_the_checked_out_repository_knows_its_url_and_no_credential(forge: PrivateForge) -> None:
    source = await forge.check_out()
    config = (source / ".git" / "config").read_text()
    assert f'url = "{forge.url}"' in config
    files = [file.read_bytes() for file in source.rglob("*") if file.is_file()]
    assert not any(TOKEN.encode() in content or b"Authorization" in content for content in files)


async def test_a_redirect_takes_the_credential_nowhere(
    tmp_path: Path, signer: Authority, certificate: tuple[Path, Path]
) -> None:
    elsewhere: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            elsewhere.append(str(self.headers))
            self.send_error(404)

    forge = PrivateForge(tmp_path, signer)
    with http_server(Elsewhere) as other:
        target = f"http://127.0.0.1:{other}/river/otter/.git/info/refs?service=git-upload-pack"
        with https_server(answering(302, Location=target), certificate) as forge.port:
            forge.write_rules()
            failed = await forge.failure()
    assert elsewhere == []
    assert "redirects are not followed" in failed.detail
    assert str(other) not in failed.detail


async def test_a_server_that_repeats_the_credential_does_not_bring_it_into_messages(
    tmp_path: Path, signer: Authority, certificate: tuple[Path, Path]
) -> None:
    class Repeating(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            words = f"ERR you are {self.headers['Authorization']} with {TOKEN}\n".encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.send_header("X-Echo", self.headers["Authorization"])
            self.end_headers()
            self.wfile.write(b"001e# service=git-upload-pack\n0000" + b"%04x" % (len(words) + 4) + words)

    forge = PrivateForge(tmp_path, signer)
    with https_server(Repeating, certificate) as forge.port:
        forge.write_rules()
        failed = await forge.failure()
    assert "you are Basic *** with ***" in failed.detail


async def test_an_untrusted_run_gets_no_credential_and_is_told_so(forge: PrivateForge) -> None:
    failed = await forge.failure(trusted=False)
    assert failed.reason is Reason.COMMIT_NOT_FOUND
    assert "fetches for trusted runs alone" in failed.detail
    assert {given for _, given in forge.asking.requests} == {""}
    forge.write_rules(more="untrusted = true")
    assert (await forge.check_out(trusted=False) / "hello.txt").exists()


async def test_planning_shows_an_untrusted_run_nothing_that_a_trusted_one_fetched(
    forge: PrivateForge,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, forge.policy(), forge.folder / "scratch")
        ask = partial(files.of, paths=[".solstice/job.sh"])
        trusted, untrusted = await asyncio.gather(
            ask(forge.request()), ask(forge.request(trusted=False)), return_exceptions=True
        )
        assert trusted == {".solstice/job.sh": b"true\n"}
        assert isinstance(untrusted, CheckoutFailed)
        with pytest.raises(CheckoutFailed):
            await ask(forge.request(trusted=False))


@pytest.mark.parametrize("fetched", ["a checkout", "a plan"])
async def test_what_was_fetched_serves_a_right_that_was_revoked_no_longer_than_documented(
    fetched: str, forge: PrivateForge
) -> None:
    now, policy = [100.0], forge.policy()
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, policy, forge.folder / "scratch", clock=lambda: now[0])
        objects = ObjectCache(forge.folder / "work/git/objects", 1024**3, clock=lambda: now[0])

        async def use() -> object:
            if fetched == "a plan":
                return await files.of(forge.request(), [".solstice/job.sh"])
            return await forge.check_out(policy, objects=objects)

        await use()
        forge.asking.authorization = "Basic revoked"
        now[0] += PROVEN_SECONDS - 1
        await use()
        requests = len(forge.asking.requests)
        now[0] += 1
        with pytest.raises(CheckoutFailed, match="refused the credential"):
            await use()
        assert len(forge.asking.requests) > requests
        with pytest.raises(CheckoutFailed, match="refused the credential"):
            await use()


async def test_another_repository_of_the_host_gets_no_credential(forge: PrivateForge) -> None:
    forge.write_rules("lake/**")
    failed = await forge.failure()
    assert failed.reason is Reason.COMMIT_NOT_FOUND
    assert {given for _, given in forge.asking.requests} == {""}


async def test_a_refused_token_is_named_as_such_and_a_new_one_is_used_at_once(forge: PrivateForge) -> None:
    policy = forge.policy()
    forge.token_file.write_text("expired-long-ago")
    failed = await forge.failure(policy)
    assert failed.reason is Reason.COMMIT_NOT_FOUND
    assert f"127.0.0.1:{forge.port} refused the credential (401)" in failed.detail
    forge.token_file.write_text(TOKEN)
    assert (await forge.check_out(policy) / "hello.txt").exists()
    forge.write_rules("lake/**")
    assert (await forge.failure(policy)).reason is Reason.COMMIT_NOT_FOUND


@pytest.mark.parametrize("trouble", ["readable by others", "missing", "two lines"])
async def test_an_unusable_secret_stops_the_fetch_and_is_not_sent(trouble: str, forge: PrivateForge) -> None:
    if trouble == "readable by others":
        forge.token_file.chmod(0o640)
    elif trouble == "missing":
        forge.token_file.unlink()
    else:
        forge.token_file.write_text(f"{TOKEN}\nX-Header: 1")
    failed = await forge.failure()
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert "cannot be used on this worker" in failed.detail
    assert str(forge.folder) not in failed.detail
    assert forge.asking.requests == []


async def test_a_server_with_a_foreign_certificate_gets_no_credential(
    forge: PrivateForge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    foreign = authority(tmp_path_factory.mktemp("foreign") / "authority")
    failed = await forge.failure(forge.policy(GIT_SSL_CAINFO=str(foreign.certificate)))
    assert failed.host_away
    assert "certificate cannot be trusted" in failed.detail
    assert forge.asking.requests == []


async def test_the_gateway_connects_to_the_address_that_was_checked(
    forge: PrivateForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = forge.hide_its_address(monkeypatch)
    await forge.check_out(replace(forge.policy(), allow_private=False), repo_url=url)


async def test_the_credential_travels_through_a_proxy_inside_tls(forge: PrivateForge) -> None:
    with http_proxy(certificate=None, user="joe", password="open sesame") as proxy:
        assert (await forge.check_out(forge.policy(HTTPS_PROXY=proxy.url())) / "hello.txt").exists()
    assert {line.split()[0] for line in proxy.requests} == {"CONNECT"}
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}


async def answer_to(head: str, port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode())
    answer = (await reader.read(64 * 1024)).decode("latin-1")
    writer.close()
    return answer.split(" ")[1] if answer else "closed"


@pytest.mark.parametrize(
    ("line", "token", "status"),
    [
        ("GET /river/otter/.git/info/refs?service=git-upload-pack HTTP/1.1", True, "200"),
        ("GET /river/otter/.git/info/refs?service=git-upload-pack HTTP/1.1", False, "403"),
        ("GET /river/otter/.git/info/refs?service=git-receive-pack HTTP/1.1", True, "403"),
        ("POST /river/otter/.git/git-receive-pack HTTP/1.1", True, "403"),
        ("GET /river/pike/.git/info/refs?service=git-upload-pack HTTP/1.1", True, "403"),
        ("GET /river/otter/.git/../../pike/info/refs?service=git-upload-pack HTTP/1.1", True, "403"),
        ("GET /api/v4/user HTTP/1.1", True, "403"),
        ("GET https://evil.example/river/otter/.git/info/refs?service=git-upload-pack HTTP/1.1", True, "closed"),
        ("CONNECT evil.example:443 HTTP/1.1", True, "closed"),
    ],
)  # fmt: skip
async def test_what_finds_the_gateway_can_fetch_this_repository_and_do_nothing_else(
    line: str, token: bool, status: str, forge: PrivateForge
) -> None:
    fetch = CredentialedFetch(
        credential=HttpCredential(user="gitlab+deploy-token-7", password=TOKEN),
        upstream=Upstream(repo_url=forge.url, environment=forge.policy().environment),
    )
    async with open_gateway(fetch) as gateway:
        given = gateway.environment["GIT_CONFIG_VALUE_1"] if token else "Authorization: Basic AAAA"
        head = f"{line}\nHost: x\n{given}\n\n"
        port = int(gateway.base.rstrip("/").rpartition(":")[2])
        assert await answer_to(head, port) == status
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


REF = b"003f" + b"1" * 40 + b" refs/heads/" + b"x" * 6 + b"\n"
ADVERTISED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n"
    b"001e# service=git-upload-pack\n0000"
)
ENDLESS: dict[str, tuple[bytes, bytes, float]] = {
    "refs": (ADVERTISED, REF * 1000, 0.0),
    "header fields": (b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 1000 + b"\r\n", 0.0),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
    "a slow head": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", 0.02),
    "a slow body": (ADVERTISED, REF, 0.02),
}
"""The beginning of an answer, what follows without end, and the seconds between two pieces of it."""


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_answer_through_the_gateway_ends_in_bounded_time_and_memory(
    kind: str, tmp_path: Path, signer: Authority, certificate: tuple[Path, Path]
) -> None:
    start, piece, pause = ENDLESS[kind]
    sent = [0]

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                self.wfile.write(start)
                while True:
                    sent[0] += self.wfile.write(piece)
                    time.sleep(pause)

    forge = PrivateForge(tmp_path, signer)
    with https_server(Endless, certificate) as forge.port:
        forge.write_rules()
        limits = replace(forge.policy(), timeout_seconds=2.0 if pause else 30.0, max_memory_bytes=64 * 2**20)
        failed = await forge.failure(limits)
        assert failed.reason is Reason.CHECKOUT_FAILED
    assert sent[0] < 256 * 2**20
