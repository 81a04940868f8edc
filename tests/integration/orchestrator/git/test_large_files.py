"""Files in Git LFS come without a credential for git-lfs."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_orchestrator.domain.checkout_spec import CheckoutSpec, Submodules
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.large_files import check_lfs
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.lfs_gateway import LfsFetch, open_lfs_gateway
from solstice_orchestrator.git.credentials.upstream import Upstream
from tests.git_memory import git_memory
from tests.private_forge import TOKEN, PrivateForge
from tests.repositories import GIT_ENVIRONMENT
from tests.servers.certificates import Authority
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server
from tests.servers.lfs_store import LfsStore

LFS = CheckoutSpec(lfs=True)
LARGE = b"large content " * 1000


class LfsForge(PrivateForge):
    """The private repository has a file in Git LFS."""

    def __init__(self, folder: Path, signer: Authority) -> None:
        super().__init__(folder, signer)
        self.store = LfsStore()
        self.sha = self.store.commit(self.repository, {"large.bin": LARGE})


@pytest.fixture
def forge(tmp_path: Path, signer: Authority) -> Iterator[LfsForge]:
    place = LfsForge(tmp_path, signer)
    handler = place.asking.handler(place.store.handler(git_backend(tmp_path / "root")))
    with https_server(handler, signer.sign("forge", "IP:127.0.0.1")) as place.port:
        place.write_rules("**")
        yield place


def status(place: Path) -> str:
    environment = {**GIT_ENVIRONMENT, "HOME": str(place.parent)}
    command = ["git", "status", "--porcelain"]
    return subprocess.run(
        command, cwd=place, env=environment, check=True, capture_output=True, text=True
    ).stdout


async def test_a_file_has_its_content_where_the_job_asks_for_it(forge: LfsForge) -> None:
    plain = await forge.check_out()
    assert (plain / "large.bin").read_bytes().startswith(b"version https://git-lfs")
    place = await forge.check_out(spec=LFS)
    assert (place / "large.bin").read_bytes() == LARGE
    (place / "large.bin").touch()
    assert status(place) == ""


async def test_a_commit_without_large_files_asks_for_none(forge: LfsForge) -> None:
    forge.repository.git("rm", "--quiet", "large.bin")
    forge.sha = forge.repository.commit({"other.txt": "x"})
    assert (await forge.check_out(spec=LFS) / "other.txt").exists()
    assert not [path for path, _ in forge.asking.requests if "lfs" in path]


async def test_files_of_submodules_have_their_content_as_well(forge: LfsForge) -> None:
    pike = forge.add("river/pike")
    sha = forge.store.commit(pike, {"pike.bin": b"k" * 5000})
    forge.sha = forge.repository.commit_submodules({"pike": ("../../pike/.git", sha)})
    place = await forge.check_out(spec=CheckoutSpec(lfs=True, submodules=Submodules.DIRECT))
    assert (place / "pike" / "pike.bin").read_bytes() == b"k" * 5000


@pytest.mark.parametrize("header", ["none", "the credential"])
async def test_no_process_of_git_lfs_ever_holds_the_token(header: str, forge: LfsForge) -> None:
    found: list[str] = []
    searched: set[str] = set()
    forms = (TOKEN.encode(), forge.asking.authorization.removeprefix("Basic ").encode())
    if header == "the credential":
        # So Forgejo and Gitea do.
        forge.store.header = lambda handler: {"Authorization": handler.headers["Authorization"]}

    def search(path: str) -> None:
        for where, content in git_memory(forge.folder):
            if b"/objects/batch" in content or b"lfs.url" in content:
                searched.add(path.partition("/")[0] + path.rpartition("/")[0][-12:])
            found.extend([where] if any(form in content for form in forms) else [])

    forge.asking.before_answer = search
    place = await forge.check_out(spec=LFS)
    assert {"info/lfs/objects"[-12:], "/content"} <= searched
    assert found == []
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}
    files = [file.read_bytes() for file in place.rglob("*") if file.is_file()]
    assert not any(form in content or b"Authorization" in content for form in forms for content in files)
    assert not any(
        b"127.0.0.1" in content.replace(f"127.0.0.1:{forge.port}".encode(), b"") for content in files
    )


def answering(status: int, body: bytes = b"") -> Any:
    def answer(handler: Any) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return answer


def endless(handler: Any) -> bool:
    """Send without end, until the client leaves."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"{" * 65536)
    except OSError:
        return True


def redirecting(handler: Any) -> bool:
    handler.send_response(302)
    handler.send_header("Location", "https://evil.example/")
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return True


def elsewhere(url: str) -> Any:
    action = {"href": url}
    objects = [{"oid": "0" * 64, "size": 1, "actions": {"download": action}}]
    return answering(200, json.dumps({"objects": objects}).encode())


@pytest.mark.parametrize(
    ("answer", "reason", "sentence"),
    [
        (elsewhere("http://127.0.0.1/x"), Reason.COMMIT_UNUSABLE, "is at 127.0.0.1 by http; it is fetched from"),
        (elsewhere("ftp://evil.example/x"), Reason.COMMIT_UNUSABLE, "is at evil.example by ftp; it is fetched from"),
        (elsewhere("file:///etc/passwd"), Reason.COMMIT_UNUSABLE, "is at no host; it is fetched from"),
        (elsewhere("https://a b/x"), Reason.COMMIT_UNUSABLE, "is at no host; it is fetched from"),
        (elsewhere("https://evil.example:port/x"), Reason.CHECKOUT_FAILED, "gave an answer that is not one of Git LFS"),
        (answering(200, b'{"objects": []}'), Reason.COMMIT_UNUSABLE, "the host has no content for it"),
        (answering(200, b"[]"), Reason.CHECKOUT_FAILED, "gave an answer that is not one of Git LFS"),
        (answering(200, b"{" * 9000), Reason.CHECKOUT_FAILED, "gave an answer that is not one of Git LFS"),
        (answering(403), Reason.COMMIT_NOT_FOUND, "gives no LFS objects (403)"),
        (answering(500), Reason.CHECKOUT_FAILED, "gives no LFS objects (500)"),
        (redirecting, Reason.CHECKOUT_FAILED, "gives no LFS objects (302)"),
        (endless, Reason.CHECKOUT_FAILED, "sends more than an answer has"),
    ],
    ids=["without TLS", "ftp", "a file", "no name", "no port", "nothing", "a list", "brackets", "forbidden", "broken",
         "redirect", "endless"],
)  # fmt: skip
async def test_a_hostile_or_broken_answer_ends_the_checkout(
    answer: Any, reason: Reason, sentence: str, forge: LfsForge
) -> None:
    forge.store.answer = answer
    failed = await forge.failure(spec=LFS)
    assert sentence in failed.detail
    assert failed.reason is reason


async def test_a_token_of_an_app_that_the_host_refuses_is_replaced_for_the_next_try(forge: LfsForge) -> None:
    refusals: list[str] = []
    credential = HttpCredential(
        user="x-access-token", password="ghs_1", refused=lambda: refusals.append("refused")
    )
    upstream = Upstream(repo_url=forge.url, environment=forge.policy().environment)
    fetch = LfsFetch(upstream=upstream, credential=credential, max_bytes=1024**2, allow_private=True)
    message = {"operation": "download", "objects": [{"oid": "0" * 64, "size": 1}]}
    async with open_lfs_gateway(fetch) as gateway, httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{gateway.base}/objects/batch", json=message)
        assert answer.status_code == 422
        assert gateway.reason is Reason.CHECKOUT_FAILED
        assert gateway.trouble == f"127.0.0.1:{forge.port} gives no LFS objects (401)"
    assert refusals == ["refused"]


@pytest.mark.parametrize("content", [b"other content", b"", LARGE + b"more", LARGE[:-1] + b"X"])
async def test_content_that_is_not_what_the_commit_names_is_not_taken(
    content: bytes, forge: LfsForge
) -> None:
    (oid,) = forge.store.contents
    forge.store.contents[oid] = content
    if content.startswith(LARGE):
        assert (await forge.check_out(spec=LFS) / "large.bin").read_bytes() == LARGE
        return
    assert "files in Git LFS are not fetched" in (await forge.failure(spec=LFS)).detail


async def test_the_url_in_lfsconfig_leads_nowhere(forge: LfsForge) -> None:
    hostile = "[lfs]\n\turl = http://127.0.0.1:9/evil\n\tskipdownloaderrors = true\n"
    forge.sha = forge.repository.commit({".lfsconfig": hostile})
    assert (await forge.check_out(spec=LFS) / "large.bin").read_bytes() == LARGE
    forge.store.contents.clear()
    assert "the host has no content for it" in (await forge.failure(spec=LFS)).detail


async def test_a_file_beyond_the_disk_limit_is_not_asked_for(forge: LfsForge) -> None:
    limited = replace(forge.policy(), max_bytes=2 * 1024**2)
    forge.sha = forge.store.commit(forge.repository, {"huge.bin": bytes(3 * 1024**2)})
    failed = await forge.failure(limited, spec=LFS)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "larger than the disk limit of a checkout" in failed.detail


async def test_a_worker_without_git_lfs_says_what_to_install(forge: LfsForge, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    policy = replace(forge.policy(), environment={**forge.policy().environment, "PATH": str(bare)})
    failed = await forge.failure(policy, spec=LFS)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "install the package git-lfs" in failed.detail
    check_lfs(forge.policy())


async def test_a_repository_that_is_not_fetched_by_https_has_no_large_files(forge: LfsForge) -> None:
    policy = GitPolicy(protocols=("file",), environment={"PATH": os.environ["PATH"]})
    failed = await forge.failure(policy, spec=LFS, repo_url=forge.repository.url)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "fetched by https alone" in failed.detail
