"""Commits of a small repository are fetched without git, as safely as by it."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.objects import small_fetches
from solstice_orchestrator.git.objects.commit_checkout import whole_commit
from solstice_orchestrator.git.objects.fetch_messages import MAX_ANSWER_BYTES, fetch_request, pack_in
from solstice_orchestrator.git.objects.pack_file import LeftToGit, SmallPack
from solstice_orchestrator.git.objects.small_fetches import fetch_small
from tests.builders import job_request
from tests.private_forge import PrivateForge
from tests.repositories import Repository
from tests.servers.certificates import Authority
from tests.servers.git_servers import answering, git_backend, http_server
from tests.servers.hostile_git_host import BODIES, hostile, packet
from tests.servers.http_proxy import http_proxy, https_server
from tests.servers.socks_proxy import socks_proxy
from tests.servers.stream_server import stream_server

PATHS = [".solstice/job.sh"]


@pytest.fixture
def forge(tmp_path: Path, signer: Authority) -> Iterator[PrivateForge]:
    place = PrivateForge(tmp_path, signer)
    handler = place.asking.handler(git_backend(tmp_path / "root"))
    certificate = signer.sign("forge", "IP:127.0.0.1,DNS:forge.invalid")
    with https_server(handler, certificate) as place.port:
        place.write_rules()
        yield place


async def fetched(forge: PrivateForge, policy: GitPolicy | None = None, **changes: Any) -> SmallPack:
    return await fetch_small(
        forge.request(**changes),
        [forge.sha],
        policy=policy or forge.policy(),
    )


def workflow(pack: SmallPack, sha: str) -> bytes:
    (entry,) = [each for each in whole_commit(pack, sha).entries if each.path == PATHS[0]]
    return entry.object.content


@pytest.fixture
def policy() -> GitPolicy:
    return GitPolicy(protocols=("file", "http"), environment={"PATH": os.environ["PATH"]})


async def from_url(url: str, sha: str, tmp_path: Path, policy: GitPolicy) -> SmallPack:
    request = job_request(repo_url=url, commit_sha=sha)
    return await fetch_small(request, [sha], policy=policy)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("scheme", ["file", "http"])
async def test_commits_come_whole_and_without_their_history(
    scheme: str, object_format: str, tmp_path: Path, policy: GitPolicy
) -> None:
    repository = Repository(tmp_path / "root" / "app", object_format=object_format)
    shas = [repository.commit({PATHS[0]: f"{number}\n", "a/b/c": "x"}) for number in range(3)]
    with http_server(git_backend(tmp_path / "root")) as port:
        url = repository.url if scheme == "file" else f"http://127.0.0.1:{port}/app/.git"
        pack = await fetch_small(
            job_request(repo_url=url, commit_sha=shas[1]),
            shas[1:],
            policy=policy,
        )
    assert [workflow(pack, sha) for sha in shas[1:]] == [b"1\n", b"2\n"]
    assert shas[0] not in pack.objects


@pytest.mark.parametrize(
    ("content", "is_text"),
    [
        ("naïve ⚓ \t\f\r\n".encode(), True),
        (b"", True),
        (os.urandom(128) + b"\xff", False),
        ("Hafenmeister für Häfen".encode("latin-1"), False),
        (b"a\0b", False),
        (b"\x1b[1m", False),
    ],
    ids=["text", "empty", "random", "other encoding", "NUL", "control character"],
)
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
async def test_git_fetches_what_could_hide_a_collision_of_sha_1(
    content: bytes, is_text: bool, object_format: str, tmp_path: Path, policy: GitPolicy
) -> None:
    repository = Repository(tmp_path / "app", object_format=object_format)
    # Git refuses a message with NUL.
    (tmp_path / "message").write_bytes(b"Change\n\n" + content.replace(b"\0", b"\x01"))
    repository.commit({PATHS[0]: "true\n"})
    # With this encoding git leaves the bytes as they are.
    repository.git("config", "i18n.commitEncoding", "iso-8859-1")
    repository.git("commit", "--amend", f"--file={tmp_path / 'message'}", "--cleanup=verbatim")
    shas = [repository.git("rev-parse", "HEAD"), repository.commit({"file": content})]
    for sha in shas:
        if is_text or object_format == "sha256":
            assert workflow(await from_url(repository.url, sha, tmp_path, policy), sha) == b"true\n"
        else:
            with pytest.raises(LeftToGit):
                await from_url(repository.url, sha, tmp_path, policy)


async def test_a_private_repository_needs_one_request_with_its_token(forge: PrivateForge) -> None:
    assert workflow(await fetched(forge), forge.sha) == b"true\n"
    assert forge.asking.requests == [("/river/otter/.git/git-upload-pack", forge.asking.authorization)]


async def test_planning_fetches_further_commits_with_one_request_each(forge: PrivateForge) -> None:
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, forge.policy(), forge.folder / "scratch")
        for number in range(3):
            forge.sha = forge.repository.commit({PATHS[0]: f"{number}\n"})
            forge.asking.requests.clear()
            assert await files.of(forge.request(), PATHS) == {PATHS[0]: f"{number}\n".encode()}
    assert len(forge.asking.requests) == 1


@pytest.mark.parametrize("trouble", ["untrusted", "other token", "no file", "foreign certificate"])
async def test_the_token_is_sent_to_no_other_host_and_for_no_other_run(
    trouble: str, forge: PrivateForge, tmp_path: Path
) -> None:
    policy, changes = forge.policy(), dict[str, Any]()
    match trouble:
        case "untrusted":
            changes["trusted"] = False
        case "other token":
            forge.token_file.write_text("other")
        case "no file":
            forge.token_file.unlink()
        case _:
            policy = replace(policy, environment={"PATH": os.environ["PATH"]})
    with pytest.raises(LeftToGit):
        await fetched(forge, policy, **changes)
    assert forge.asking.authorization not in {given for _, given in forge.asking.requests}
    # A refused one is left to git, which says so.
    assert len(forge.asking.requests) == (trouble in {"untrusted", "other token"})


async def test_proxies_lead_to_the_repository_and_see_no_token(forge: PrivateForge) -> None:
    with http_proxy(certificate=None, user="joe", password="open sesame") as http, socks_proxy() as socks:
        for url in (http.url(), f"socks5h://{socks.name}"):
            assert workflow(await fetched(forge, forge.policy(https_proxy=url)), forge.sha) == b"true\n"
    assert {line.split()[0] for line in http.requests} == {"CONNECT"}
    assert set(socks.targets) == {f"127.0.0.1:{forge.port}"}
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}


async def test_private_addresses_are_not_asked_where_they_are_not_allowed(forge: PrivateForge) -> None:
    with pytest.raises(LeftToGit):
        await fetched(forge, replace(forge.policy(), allow_private=False))
    assert forge.asking.requests == []


async def test_it_connects_to_the_address_that_was_checked(
    forge: PrivateForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = forge.hide_its_address(monkeypatch)
    await fetched(forge, replace(forge.policy(), allow_private=False), repo_url=url)


async def test_a_redirect_is_not_followed(tmp_path: Path, policy: GitPolicy) -> None:
    elsewhere: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            elsewhere.append(self.path)
            self.send_error(404)

        def do_GET(self) -> None:
            self.do_POST()

    with http_server(Elsewhere) as other:
        handler = answering(302, Location=f"http://127.0.0.1:{other}/x.git/git-upload-pack")
        handler.do_POST = handler.do_GET
        with http_server(handler) as port, pytest.raises(LeftToGit):
            await from_url(f"http://127.0.0.1:{port}/x.git", "1" * 40, tmp_path, policy)
    assert elsewhere == []


@pytest.mark.parametrize("kind", [*BODIES, "closes", "403", "404", "429", "301"])
async def test_every_answer_of_a_hostile_host_is_left_to_git(
    kind: str, tmp_path: Path, policy: GitPolicy
) -> None:
    with http_server(hostile(tmp_path)) as port:
        url = f"http://127.0.0.1:{port}/{kind.replace(' ', '_')}/app.git"
        with pytest.raises(LeftToGit):
            await from_url(url, "1" * 40, tmp_path, policy)


class Sending:
    """A server that answers with these bytes, the piece over and over."""

    def __init__(self, head: bytes, piece: bytes, times: int, pause: float) -> None:
        self._head, self._piece, self._times, self._pause = head, piece, times, pause
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0009done\n0000")
        writer.write(self._head)
        with contextlib.suppress(OSError):
            for _ in range(self._times):
                if reader.at_eof():
                    break
                writer.write(self._piece)
                await writer.drain()
                await asyncio.sleep(self._pause)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.ended.set()


TYPE = b"Content-Type: application/x-git-upload-pack-result\r\n"
GOOD = b"HTTP/1.1 200 OK\r\n" + TYPE
PACK = packet(b"packfile\n") + packet(b"\x01" + bytes(60_000))


@pytest.mark.parametrize(
    ("head", "piece", "times", "pause"),
    [
        (GOOD + b"\r\n" + PACK, packet(b"\x01" + bytes(60_000)), 10**6, 0.0),
        (GOOD + b"\r\n", packet(b"\x02more and more"), 10**6, 0.0),
        (b"HTTP/1.1 200 OK\r\n", b"X-Long: header\r\n", 10**6, 0.0),
        (b"", b"", 10**6, 0.05),
        (GOOD + b"\r\n" + PACK, b"0", 10**6, 0.05),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n", 1, 0.0),
        (GOOD + b"Content-Encoding: gzip\r\n\r\n", PACK + b"0000", 1, 0.0),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", PACK + b"0000", 1, 0.0),
        (GOOD + b"\r\n", PACK + b"0000", 1, 0.0),
        (GOOD + b"\r\n", PACK, 1, 0.0),
        (b"no HTTP\r\n\r\n", b"", 1, 0.0),
    ],
    ids=[
        "endless pack",
        "endless progress",
        "endless head",
        "silence",
        "drops",
        "chunks",
        "compressed",
        "web page",
        "no pack",
        "cut",
        "no http",
    ],
)
async def test_a_strange_answer_is_left_to_git_in_bounded_time_and_memory(
    head: bytes,
    piece: bytes,
    times: int,
    pause: float,
    tmp_path: Path,
    policy: GitPolicy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(small_fetches, "FETCH_SECONDS", 1.0)
    sending = Sending(head, piece, times, pause)
    async with asyncio.timeout(20):
        async with stream_server(sending.serve) as port:
            with pytest.raises(LeftToGit):
                await from_url(f"http://127.0.0.1:{port}/x.git", "1" * 40, tmp_path, policy)
            await sending.ended.wait()


@pytest.mark.parametrize(
    "url",
    [
        "ssh://git@127.0.0.1/x.git",
        "git://127.0.0.1/x.git",
        "https://127.0.0.1/x.git",
        "http://127.0.0.1",
        "file:///nowhere/x.git",
        "file:///tmp/a%20name/x.git",
    ],
)
async def test_other_urls_and_forbidden_protocols_are_left_to_git(
    url: str, tmp_path: Path, policy: GitPolicy
) -> None:
    with pytest.raises(LeftToGit):
        await from_url(url, "1" * 40, tmp_path, policy)


async def test_a_server_of_an_older_protocol_is_left_to_git(tmp_path: Path, policy: GitPolicy) -> None:
    repository = Repository(tmp_path / "root" / "app")
    sha = repository.commit({PATHS[0]: "true\n"})
    with http_server(git_backend(tmp_path / "root", HTTP_GIT_PROTOCOL="")) as port:
        url = f"http://127.0.0.1:{port}/app/.git"
        with pytest.raises(LeftToGit):
            await from_url(url, sha, tmp_path, policy)
        async with asyncio.TaskGroup() as tasks:
            files = CommitFiles(tasks, policy, tmp_path / "scratch")
            for number in range(3):
                sha = repository.commit({PATHS[0]: f"{number}\n"})
                request = job_request(repo_url=url, commit_sha=sha, ref="refs/heads/main")
                assert await files.of(request, PATHS) == {PATHS[0]: f"{number}\n".encode()}


async def test_a_commit_that_is_not_there_is_left_to_git(tmp_path: Path, policy: GitPolicy) -> None:
    repository = Repository(tmp_path / "app")
    repository.commit({PATHS[0]: "true\n"})
    with pytest.raises(LeftToGit):
        await from_url(repository.url, "1" * 40, tmp_path, policy)


WRONG: list[Callable[[bytes], bytes]] = [
    lambda answer: b"",
    lambda answer: answer[:-1],
    lambda answer: answer + b"0000",
    lambda answer: b"zzzz" + answer,
    lambda answer: b"0003" + answer,
    lambda answer: b"ffff" + answer,
    lambda answer: packet(b"ERR no\n") + answer,
    lambda answer: packet(b"packfile-uris\n") + answer,
    lambda answer: packet(b"packfile\n") + packet(b"\x03no") + b"0000",
    lambda answer: packet(b"shallow-info\n") + packet(b"shallow " + b"1" * 40) + b"0000",
]


@pytest.mark.parametrize("change", WRONG, ids=range(len(WRONG)))
def test_only_a_whole_answer_has_a_pack(change: Callable[[bytes], bytes]) -> None:
    answer = packet(b"shallow-info\n") + packet(b"shallow " + b"1" * 40) + b"0001"
    answer += (
        packet(b"packfile\n") + packet(b"\x02progress") + packet(b"\x01one") + packet(b"\x01two") + b"0000"
    )
    assert pack_in(answer) == b"onetwo"
    with pytest.raises(LeftToGit):
        pack_in(change(answer))


def test_a_request_names_each_commit_and_no_history() -> None:
    request = fetch_request(["1" * 40, "2" * 40])
    assert request.startswith(b"0012command=fetch\n0017object-format=sha1\n0001")
    assert request.endswith(
        b"000ddeepen 1\n0032want " + b"1" * 40 + b"\n0032want " + b"2" * 40 + b"\n0009done\n0000"
    )
    assert len(request) < MAX_ANSWER_BYTES
