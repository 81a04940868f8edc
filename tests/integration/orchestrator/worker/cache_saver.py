"""Forks processes that save and restore caches again and again, until each is killed.

For each line that it reads it forks one and writes its id; it does not go on before that one has ended.
"""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

from solstice_orchestrator.domain.jobs import CacheSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.job_caches import CachingJob, JobCaches
from solstice_orchestrator.worker.caches.object_bucket import BucketSettings, open_bucket
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from solstice_orchestrator.worker.workspaces import Workspace
from tests.builders import job_request

FILES = 6


class Silence:
    async def mark(self, line: LogMark) -> None: ...

    async def write(self, data: bytes) -> None: ...


def store_of(folder: Path, endpoint: str = "", credentials: str = "") -> CacheStore:
    """The store of these processes: a directory, or a bucket."""
    local = ObjectDirectory(folder / "caches")
    if not endpoint:
        return CacheStore(objects=local)
    settings = BucketSettings(url="s3://caches/killed", endpoint=endpoint, credentials=credentials)
    return CacheStore(objects=open_bucket(settings, local))


def is_whole(folder: Path) -> bool:
    """Whether a directory has all that was saved together."""
    content = b"".join((folder / str(number)).read_bytes() for number in range(FILES))
    return (folder / "digest").read_text() == hashlib.sha256(content).hexdigest()


async def save_and_restore(folder: Path, *bucket: str) -> None:
    """Save files that were never there before, and restore them into another workspace."""
    caches, request = JobCaches(store=store_of(folder, *bucket)), job_request()
    while True:
        name = os.urandom(8).hex()
        spec = CacheSpec(name="c", paths=("c",), key=f"c-{name}")
        for each in ("saved", "restored"):
            workspace = _workspace(folder / each / name)
            if each == "saved":
                _write_files(workspace.source / "c")
            job = CachingJob(job_id=name, specs=(spec,), request=request, workspace=workspace, system="linux")
            sought = await caches.restore(job, Silence(), asyncio.Event())
            if each == "saved":
                await caches.save(job, sought, Silence(), asyncio.Event())


def _workspace(root: Path) -> Workspace:
    found = Workspace(
        root=root, source=root / "source", home=root / "home", temporary=root / "tmp", scripts=root / "steps"
    )
    for each in (found.source, found.home):
        each.mkdir(parents=True)
    return found


def _write_files(folder: Path) -> None:
    folder.mkdir()
    pieces = [os.urandom(200_000) for _ in range(FILES)]
    for number, piece in enumerate(pieces):
        (folder / str(number)).write_bytes(piece)
    (folder / "digest").write_text(hashlib.sha256(b"".join(pieces)).hexdigest())


def main(folder: Path, *bucket: str) -> None:
    """Fork one process after the other."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(save_and_restore(folder, *bucket))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
