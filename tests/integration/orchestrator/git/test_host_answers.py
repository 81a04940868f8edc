"""Which failures of real git count against the host of a repository."""

import contextlib
import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_group import FilesRequest, SingleFetch, fetch_group, fetch_single
from tests.builders import job_request
from tests.servers.git_servers import http_server
from tests.servers.hostile_git_host import BODIES, STATUSES, hostile

SHA = "a" * 40

POLICY = GitPolicy(
    protocols=("http", "https", "ssh", "git"),
    timeout_seconds=10.0,
    planning_timeout_seconds=10.0,
    environment={"PATH": os.environ["PATH"]},
)


async def failures(url: str, folder: Path, policy: GitPolicy = POLICY) -> list[CheckoutFailed]:
    """The failures of a checkout, of planning alone, and of planning in a group."""
    request = job_request(repo_url=url, commit_sha=SHA, ref="refs/heads/main")
    want = FilesRequest(request=request, paths=("workflow.kdl",))
    with pytest.raises(CheckoutFailed) as caught:
        await check_out(request, folder / "source", policy=policy, scratch=folder / "scratch")
    single = await fetch_single(want, SingleFetch.AGAIN, policy=policy, scratch=folder / "scratch")
    grouped = await fetch_group([want], policy=policy, scratch=folder / "scratch")
    found = [caught.value, single, *grouped]
    return [each for each in found if isinstance(each, CheckoutFailed)]


@pytest.mark.parametrize("kind", [*map(str, STATUSES), *BODIES])
async def test_an_answer_of_the_host_never_counts_against_it(kind: str, tmp_path: Path) -> None:
    with http_server(hostile(tmp_path)) as port:
        found = await failures(f"http://127.0.0.1:{port}/{kind.replace(' ', '_')}/app.git", tmp_path)
    assert found
    assert [each.host_away for each in found] == [False] * len(found)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_status_of_500_or_more_counts_against_the_host(status: int, tmp_path: Path) -> None:
    with http_server(hostile(tmp_path)) as port:
        url = f"http://127.0.0.1:{port}/{status}/'%3A The requested URL returned error%3A 404/app.git"
        found = await failures(url.replace(" ", "%20"), tmp_path)
    assert [(each.reason, each.host_away) for each in found] == [(Reason.CHECKOUT_FAILED, True)] * 3


@contextlib.contextmanager
def port_of(kind: str) -> Iterator[int]:
    """A port that refuses connections, accepts them silently, or closes them."""

    class Closes(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.read(1)

    if kind == "closes":
        with http_server(Closes) as port:
            yield port
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if kind == "silent":
            listening.listen(16)
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("refuses", "http"),
        ("refuses", "https"),
        ("refuses", "git"),
        ("refuses", "ssh"),
        ("silent", "http"),
        ("closes", "http"),
        ("closes", "https"),
        ("closes", "ssh"),
    ],
)
async def test_a_host_without_an_answer_is_away(kind: str, scheme: str, tmp_path: Path) -> None:
    policy = GitPolicy(
        protocols=POLICY.protocols,
        timeout_seconds=3.0,
        planning_timeout_seconds=3.0,
        environment=POLICY.environment,
    )
    with port_of(kind) as port:
        found = await failures(f"{scheme}://127.0.0.1:{port}/app.git", tmp_path, policy)
    assert [(each.reason, each.host_away) for each in found] == [(Reason.CHECKOUT_FAILED, True)] * 3


@pytest.mark.parametrize("scheme", ["http", "ssh"])
async def test_a_name_without_an_address_is_away(scheme: str, tmp_path: Path) -> None:
    found = await failures(f"{scheme}://forge.invalid/app.git", tmp_path)
    assert [each.host_away for each in found] == [True] * 3


@pytest.mark.parametrize(("code", "away"), [(1, False), (128, False), (255, True)])
async def test_the_exit_code_of_ssh_tells_its_failure_from_the_repositorys(
    code: int, away: bool, tmp_path: Path
) -> None:
    """What the server writes, in words of ssh, changes nothing."""
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(f"#!/bin/sh\necho 'ssh: connect to host x port 22: Connection refused' >&2\nexit {code}\n")
    ssh.chmod(0o755)
    policy = GitPolicy(protocols=("ssh",), environment={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    found = await failures("ssh://git@forge.invalid/app.git", tmp_path, policy)
    assert [(each.reason, each.host_away) for each in found] == [(Reason.CHECKOUT_FAILED, away)] * 3
