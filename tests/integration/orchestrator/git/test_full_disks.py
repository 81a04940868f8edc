"""A full disk is the machine's failure, and the next checkout finds nothing half written."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_orchestrator.domain.checkout_spec import CheckoutSpec, Submodules
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from solstice_orchestrator.worker.executors.disk import size_of
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.private_forge import PrivateForge
from tests.servers.certificates import Authority
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server
from tests.servers.lfs_store import LfsStore

pytestmark = NEEDS_DISKS

DISK_MIB = 6
LARGE = os.urandom(8 * 1024**2)
KINDS = {
    "the fetch": CheckoutSpec(),
    "the files": CheckoutSpec(),
    "a submodule": CheckoutSpec(submodules=Submodules.DIRECT),
    "a large file": CheckoutSpec(lfs=True),
    "large files that come at once": CheckoutSpec(lfs=True),
    "the copy of a large file": CheckoutSpec(lfs=True),
}
"""What does not fit, and the checkout that needs it."""


class SmallWorker:
    """A worker whose disk holds small commits alone; all that it writes is there."""

    def __init__(self, forge: PrivateForge, store: LfsStore, disk: Path) -> None:
        self.forge, self.store, self.disk = forge, store, disk
        self.scratch, self.cached = disk / "work" / "git", disk / "work" / "git" / "objects"
        self.objects = ObjectCache(self.cached, 1024**3)
        self.small = forge.sha
        self._count = 0

    def commit(self, kind: str) -> str:
        repository = self.forge.repository
        match kind:
            case "the fetch":
                return repository.commit({"large.bin": LARGE})
            case "the files":
                return repository.commit({f"large-{number}.txt": "x" * 1024**2 for number in range(8)})
            case "a submodule":
                pike = self.forge.add("river/pike")
                sha = pike.commit({"large.bin": LARGE})
                return repository.commit_submodules({"pike": ("../../pike/.git", sha)})
            case "a large file":
                return self.store.commit(repository, {"large.bin": LARGE})
            case "large files that come at once":
                pieces = [LARGE[at : at + 1024**2] for at in range(0, len(LARGE), 1024**2)]
                return self.store.commit(
                    repository, {f"large-{number}.bin": piece for number, piece in enumerate(pieces)}
                )
            case _:
                # Fits once, and not twice: git-lfs stores it before it writes the file.
                return self.store.commit(repository, {"large.bin": LARGE[: 4 * 1024**2]})

    async def check_out(self, sha: str, spec: CheckoutSpec) -> Path:
        self._count += 1
        place = self.disk / f"place-{self._count}"
        await check_out(
            self.forge.request(commit_sha=sha),
            place,
            policy=replace(self.forge.policy(), max_bytes=64 * 1024**2),
            scratch=self.scratch,
            objects=self.objects,
            spec=spec,
        )
        return place

    def files_of_cache(self) -> int:
        return len(list(self.cached.iterdir())) if self.cached.exists() else 0


@pytest.fixture
def worker(tmp_path: Path, signer: Authority) -> Iterator[SmallWorker]:
    forge, store = PrivateForge(tmp_path, signer), LfsStore()
    handler = forge.asking.handler(store.handler(git_backend(tmp_path / "root")))
    with (
        https_server(handler, signer.sign("forge")) as forge.port,
        mounted_disk(tmp_path / "disk", mib=DISK_MIB) as disk,
    ):
        forge.write_rules()
        yield SmallWorker(forge, store, disk)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_does_not_fit_is_the_machines_failure_and_the_next_checkout_works(
    kind: str, worker: SmallWorker
) -> None:
    large, spec = worker.commit(kind), KINDS[kind]
    with pytest.raises(CheckoutFailed) as caught:
        await worker.check_out(large, spec)
    assert caught.value.reason is Reason.MACHINE_FAILED, caught.value.detail
    assert any(words in caught.value.detail for words in ("o space left on device", "Out of diskspace"))
    assert not caught.value.host_away
    # The workspaces of an attempt are removed at its end.
    for place in worker.disk.glob("place-*"):
        shutil.rmtree(place)
    # Also while a directory of git is being removed.
    assert size_of(worker.disk).size_bytes < 64 * 1024
    for _ in range(2):
        assert (await worker.check_out(worker.small, CheckoutSpec()) / "hello.txt").read_text() == "ahoy\n"
    before = len(worker.forge.asking.requests)
    assert (await worker.check_out(worker.small, CheckoutSpec()) / "hello.txt").exists()
    assert len(worker.forge.asking.requests) == before
    assert worker.files_of_cache() > 0
