"""No place that a job can read has the credential of a private repository."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.store import open_store
from tests.executor_harness import NEEDS_OTHER_USER, NEEDS_PROC, as_user
from tests.gated_jobs import Commit, all_ended, publish_requests, wait_for_jobs
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.certificates import authority
from tests.servers.git_servers import AskingServer, git_backend
from tests.servers.http_proxy import https_server
from tests.servers.lfs_store import LfsStore
from tests.servers.orchestrator import SharedFiles, orchestrator

pytestmark = [NEEDS_PROC, NEEDS_OTHER_USER]

UID = 50_000 + os.getpid() % 5000
TOKEN = "plaNted-77aa0be1c4"
SEARCH = """
cd "$(dirname "$0")/.." 2>/dev/null || true
exec 2>/dev/null
[ ! -e {loot}/ready ] || exit 0
env > {loot}/environment
cat .git/config > {loot}/config
git remote --verbose > {loot}/remote
touch {loot}/ready
for part in {parts}; do
    while [ ! -e {loot}/fetching-$part ]; do sleep 0.05; done
    for process in /proc/[0-9]*; do
        cat $process/environ $process/cmdline >> {loot}/processes-$part
        ls -l $process/fd >> {loot}/descriptors
    done
    touch {loot}/done-$part
done
"""
"""Reads all that it can, while the orchestrator fetches each part of a checkout for another job."""
PARTS = {
    "small-fetch": "/river/.git/git-upload-pack",
    "repository": "/river/.git/info/refs",
    "large-file": "/info/lfs/",
    "submodule": "/pike/",
}
"""The path of the first request of each part, in their order: planning asks without git at first."""
WORKFLOW = """
job "search" {
    checkout submodules=#true lfs=#true
    step "search" run="sh .solstice/job.sh"
}
"""


@dataclass(frozen=True)
class RepositoryUrl:
    """A repository by another URL than that of its folder."""

    url: str


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def give(path: Path) -> Path:
    path.mkdir()
    os.chown(path, UID, UID)
    return path


async def test_a_planted_credential_is_found_nowhere_by_a_job_that_runs_meanwhile(
    folder: Path, tmp_path: Path
) -> None:
    loot, shared = give(folder / "loot"), SharedFiles(directory=give(folder / "service"))
    repository, pike, large = Repository(tmp_path / "river"), Repository(tmp_path / "pike"), LfsStore()
    files = {
        ".solstice/workflow.kdl": WORKFLOW,
        ".solstice/job.sh": SEARCH.format(loot=loot, parts=" ".join(PARTS)),
    }
    commits = []
    for number in (1, 2):
        large.commit(repository, {"large.bin": b"large" * number}, **files)
        sha = pike.commit({"pike.txt": str(number)})
        commits.append(repository.commit_submodules({"pike": ("../../pike/.git", sha)}))
    searching, other = commits
    asking = AskingServer("ci", TOKEN)

    def hold(path: str) -> None:
        for part in [part for part, begin in PARTS.items() if begin in path and (loot / "ready").exists()]:
            if not (loot / f"fetching-{part}").exists():
                (loot / f"fetching-{part}").touch()
                asyncio.run(wait_until((loot / f"done-{part}").exists))

    asking.before_answer = hold
    signer = authority(tmp_path / "authority")
    signer.certificate.parent.chmod(0o755)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    with https_server(asking.handler(large.handler(git_backend(tmp_path))), signer.sign("forge")) as port:
        rules = folder / "credentials.toml"
        rules.write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{port}/**"]\ntoken = "file:token"\nuser = "ci"\n'
        )
        place = RepositoryUrl(f"https://127.0.0.1:{port}/river/.git")
        async with open_store(shared.database_url) as store:
            # Both users write to the files of the store and the broker.
            for file in shared.directory.iterdir():
                os.chown(file, UID, UID)
            with orchestrator(
                shared,
                before=as_user(UID),
                HOME=str(shared.directory),
                GIT_PROTOCOLS="https",
                GIT_CREDENTIALS=str(rules),
                GIT_SSL_CAINFO=str(signer.certificate),
            ) as service:
                await publish_requests(shared, Commit(place, searching))  # type: ignore[arg-type]  # its URL is all it needs
                await wait_until((loot / "ready").exists)
                await publish_requests(shared, Commit(place, other))  # type: ignore[arg-type]  # the same
                views = await wait_for_jobs(store, lambda views: len(views) > 1 and all_ended(views))
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2
    for part in ("repository", "submodule"):
        assert b"GIT_CONFIG_VALUE_1=Authorization: Basic" in (loot / f"processes-{part}").read_bytes()
    assert b"Authorization" not in (loot / "processes-small-fetch").read_bytes()
    assert b"=lfs.url" in (loot / "processes-large-file").read_bytes()
    assert {given for _, given in asking.requests} == {asking.authorization}
    forms = (TOKEN.encode(), asking.authorization.removeprefix("Basic ").encode())
    places = {**contents(folder), "log": repr(service.events).encode()}
    assert [name for name, content in places.items() if any(form in content for form in forms)] == [
        str(folder / "token")
    ]
    assert {"store.db", "broker.db"} <= {Path(name).name for name in places}
