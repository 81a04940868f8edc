"""Servers of git repositories that want more of us than a repository."""

import os
import resource
import socket
import sys
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git import addresses
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_ancestry import ask_repository
from solstice_orchestrator.git.commit_group import FilesRequest, SingleFetch, fetch_single
from solstice_orchestrator.git.heads import Branch, head_of
from solstice_orchestrator.superseding.push_order import OrderQuestion
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.git_servers import answering, git_backend, http_server

SHA = "a" * 40
LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="not asked for: this is no Linux, whose RLIMIT_DATA bounds git",
)


def policy(**changes: Any) -> GitPolicy:
    values: dict[str, Any] = {
        "protocols": ("http",),
        "timeout_seconds": 60.0,
        "max_memory_bytes": 128 * 2**20,
        "planning_max_memory_bytes": 128 * 2**20,
        "environment": {"PATH": os.environ["PATH"]},
    }
    return GitPolicy(**{**values, **changes})


async def checkout(url: str, folder: Path, limits: GitPolicy) -> CheckoutFailed:
    with pytest.raises(CheckoutFailed) as caught:
        await check_out(request(url), folder / "source", policy=limits, scratch=folder / "scratch")
    return caught.value


async def plan(url: str, folder: Path, limits: GitPolicy) -> CheckoutFailed:
    want = FilesRequest(request=request(url), paths=("workflow.kdl",))
    answer = await fetch_single(want, SingleFetch.AGAIN, policy=limits, scratch=folder / "scratch")
    assert isinstance(answer, CheckoutFailed)
    return answer


async def head(url: str, folder: Path, limits: GitPolicy) -> CheckoutFailed:
    with pytest.raises(CheckoutFailed) as caught:
        await head_of(Branch(repo_url=url, ref="refs/heads/main"), policy=limits, scratch=folder / "scratch")
    return caught.value


async def descent(url: str, folder: Path, limits: GitPolicy) -> CheckoutFailed:
    question = OrderQuestion(commit_sha=SHA, newest_sha="b" * 40, before_sha=None)
    with pytest.raises(CheckoutFailed) as caught:
        await ask_repository(request(url), question, policy=limits, scratch=folder / "scratch")
    return caught.value


def request(url: str) -> JobRequestV1:
    return job_request(repo_url=url, commit_sha=SHA, ref="refs/heads/main")


WAYS = pytest.mark.parametrize("ask", [checkout, plan, head, descent])


def endless(start: bytes, piece: bytes) -> Any:
    """A server that answers everything with a beginning and then an endless repetition."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            try:
                self.wfile.write(start)
                while True:
                    self.wfile.write(piece)
            except OSError:
                return

    return Handler


def packet(words: bytes) -> bytes:
    return b"%04x" % (len(words) + 4) + words


ADVERTISEMENT = (
    packet(b"# service=git-upload-pack\n")
    + b"0000"
    + packet(SHA.encode() + b" HEAD\0multi_ack side-sideband-64k\n")
)
REFS = b"".join(packet(b"%040x refs/heads/%s-%d\n" % (n, b"r" * 200, n)) for n in range(500))


@LINUX
@WAYS
async def test_an_endless_advertisement_ends_as_that_repositorys_failure(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with http_server(endless(ADVERTISEMENT, REFS)) as port:
        failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, policy())
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert "more memory than it may have here" in failed.detail
    # In KiB, of the largest child that ever was: another test may have had a larger one, and each has our memory until
    # it runs its program.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, own, 400 * 1024)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@WAYS
async def test_a_redirect_is_not_followed(
    ask: Callable[[str, Path, GitPolicy], Any], status: int, tmp_path: Path
) -> None:
    requested_paths: list[str] = []

    class Secret(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested_paths.append(self.path)
            self.send_error(418, "the secret of an inner service")

    with http_server(Secret) as inner:
        outer = answering(
            status, Location=f"http://127.0.0.1:{inner}/inner.git/info/refs?service=git-upload-pack"
        )
        with http_server(outer) as port:
            failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, policy())
    assert requested_paths == []
    assert "secret" not in failed.detail
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert f"{status}" in failed.detail


@WAYS
async def test_this_machine_is_not_asked_where_private_addresses_are_not_allowed(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        url = f"http://localhost:{listening.getsockname()[1]}/app.git"
        failed = await ask(url, tmp_path, policy(allow_private=False))
        with pytest.raises(TimeoutError):
            listening.accept()
    assert failed.reason is Reason.COMMIT_NOT_FOUND
    assert "GIT_ALLOW_PRIVATE" in failed.detail


async def test_git_connects_to_the_address_that_was_checked_and_asks_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "root" / "app.git")
    sha = repository.commit({"hello.txt": "x"})
    lookup_answered: list[str] = []

    async def resolve(host: str, _: int) -> list[str]:
        lookup_answered.append(host)
        return ["127.0.0.1"]

    monkeypatch.setattr(addresses, "_addresses", resolve)
    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    with http_server(git_backend(tmp_path / "root")) as port:
        # No resolver knows this name: git can have the address from us alone.
        url = f"http://forge.invalid:{port}/app.git"
        await check_out(
            job_request(repo_url=url, commit_sha=sha),
            tmp_path / "source",
            policy=policy(allow_private=False),
            scratch=tmp_path / "scratch",
        )
    assert (tmp_path / "source" / "hello.txt").read_text() == "x"
    assert lookup_answered == ["forge.invalid"]


async def test_a_name_without_an_address_is_a_failure_that_may_pass(tmp_path: Path) -> None:
    failed = await plan("http://forge.invalid/app.git", tmp_path, policy(allow_private=False))
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert "Could not resolve host" in failed.detail


# -- servers that talk without end ---------------------------------------------------------------------------------

V2 = (
    packet(b"# service=git-upload-pack\n")
    + b"0000"
    + b"".join(packet(line) for line in (b"version 2\n", b"agent=x\n", b"ls-refs=unborn\n"))
    + packet(b"fetch=shallow filter\n")
    + b"0000"
)
PACK = packet(b"packfile\n")


def sideband(number: int, data: bytes) -> bytes:
    return packet(bytes([number]) + data)


def talking(start: bytes, piece: bytes, pause_seconds: float = 0.0) -> Any:
    """A git server (protocol 2) that answers a fetch with endless pieces."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            self.wfile.write(V2)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-result")
            self.end_headers()
            try:
                self.wfile.write(start)
                while True:
                    time.sleep(pause_seconds)
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                return

    return Handler


def blob(data: bytes) -> bytes:
    """An object of a pack (gitformat-pack(5))."""
    size = len(data)
    head, size = [0x30 | size & 15], size >> 4
    while size:
        head[-1] |= 0x80
        head.append(size & 127)
        size >>= 7
    return bytes(head) + zlib.compress(data, 0)


def in_sidebands(data: bytes) -> bytes:
    return b"".join(sideband(1, data[at : at + 65_000]) for at in range(0, len(data), 65_000))


def left_over(folder: Path) -> list[str]:
    """Processes that still know a place in this test's folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"={folder}/".encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_text())
        except OSError:
            continue
    return found


BRINGING = pytest.mark.parametrize("ask", [checkout, plan])
FOR_SECONDS = {"timeout_seconds": 4.0, "planning_timeout_seconds": 4.0}


@LINUX
@BRINGING
@pytest.mark.parametrize(
    ("piece", "pause_seconds", "stderr"),
    [
        (sideband(2, b"working\n" * 8_000), 0.0, "took longer than 4 s"),
        (sideband(2, b"w" * 65_000), 0.0, "more memory than it may have here"),
        (b"0005\x02", 0.2, "took longer than 4 s"),
    ],
    ids=["lines of progress", "one line of progress", "a packet now and then"],
)
async def test_progress_without_end_is_that_hosts_failure(
    ask: Callable[[str, Path, GitPolicy], Any],
    tmp_path: Path,
    piece: bytes,
    pause_seconds: float,
    stderr: str,
) -> None:
    with http_server(talking(PACK, piece, pause_seconds)) as port:
        failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, policy(**FOR_SECONDS))
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert stderr in failed.detail
    assert left_over(tmp_path) == []


@BRINGING
async def test_a_pack_without_end_is_ended_at_the_limit_of_the_disk(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    start = PACK + sideband(1, b"PACK" + (2).to_bytes(4) + (100_000).to_bytes(4))
    limits = policy(max_bytes=8 * 2**20, planning_max_bytes=8 * 2**20)
    with http_server(talking(start, in_sidebands(blob(os.urandom(2**18))))) as port:
        failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, limits)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "8 MiB on disk" in failed.detail
    assert left_over(tmp_path) == []


@LINUX
@BRINGING
async def test_a_pack_that_promises_billions_of_objects_takes_no_memory(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    start = PACK + sideband(1, b"PACK" + (2).to_bytes(4) + (2**31 - 1).to_bytes(4))
    with http_server(talking(start, in_sidebands(blob(b"x")))) as port:
        failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, policy())
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert "more memory than it may have here" in failed.detail
    assert left_over(tmp_path) == []


LIES = "fatal: cannot fork to run fetch-pack: Resource temporarily unavailable\nerror: file write error: No space left on device"


def refusing(text: str) -> Any:
    """A server that refuses by a protocol error with these lines."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            self.wfile.write(packet(b"# service=git-upload-pack\n") + b"0000")
            self.wfile.write(packet(f"ERR {text}".encode()))

    return Handler


@WAYS
async def test_a_host_whose_words_are_those_of_a_sick_machine_accuses_itself_alone(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    with http_server(refusing(f"no\n{LIES}")) as port:
        failed = await ask(f"http://127.0.0.1:{port}/app.git", tmp_path, policy())
    assert failed.reason is Reason.CHECKOUT_FAILED
    assert "No space left on device" in failed.detail


@WAYS
async def test_what_a_host_says_by_ssh_accuses_itself_alone(
    ask: Callable[[str, Path, GitPolicy], Any], tmp_path: Path
) -> None:
    """ssh writes the server's standard error, and its banner, as they come."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{LIES}\nEND\nexit 128\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    failed = await ask(
        "ssh://git@forge.invalid/app.git", tmp_path, policy(protocols=("ssh",), environment={"PATH": path})
    )
    assert failed.reason is Reason.CHECKOUT_FAILED
