"""Commits of a repository on this machine are read without git, as safely."""

import asyncio
import os
import shutil
import subprocess
import threading
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.objects import small_fetches
from solstice_orchestrator.git.objects.local_objects import MAX_PACKS, read_commits
from solstice_orchestrator.git.objects.pack_file import LeftToGit
from solstice_orchestrator.git.objects.small_fetches import fetch_small
from tests.builders import job_request
from tests.repositories import Repository

FILES = {"a/b/c.txt": "deep\n", ".solstice/job.sh": "true\n", "empty": "", "notes.md": "notes\n" * 200}


def by_git(repository: Repository, sha: str) -> dict[str, bytes]:
    """The commit, its directories and its files by their ids, as git reads them."""
    listed = repository.git("ls-tree", "-r", "-t", "--format=%(objecttype) %(objectname)", sha).splitlines()
    tree = repository.git("rev-parse", f"{sha}^{{tree}}")
    return {
        object_id: subprocess.run(
            ["git", "-C", str(repository.path), "cat-file", kind, object_id], check=True, capture_output=True
        ).stdout
        for kind, object_id in (("commit", sha), ("tree", tree), *(line.split() for line in listed))
    }


def read(repository: Repository, *shas: str) -> dict[str, bytes]:
    pack = read_commits(repository.path, shas, "sha1" if len(shas[0]) == 40 else "sha256")
    assert pack.size_bytes == sum(len(each.content) for each in pack.objects.values())
    return {object_id: each.content for object_id, each in pack.objects.items()}


PACKED: dict[str, Callable[[Repository], object]] = {
    "files": lambda repository: None,
    "pack": lambda repository: repository.git("gc", "--quiet"),
    "deltas": lambda repository: repository.git("repack", "-adfq", "--depth=50", "--window=50"),
    "bare": lambda repository: repository.git("config", "core.bare", "true"),
}


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_objects_are_those_that_git_reads(
    packed: Callable[[Repository], object], object_format: str, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "app", object_format=object_format)
    text = "".join(f"{number}\n" for number in range(2000))
    shas = [
        repository.commit({**FILES, "long.txt": text.replace(f"{number}\n", "-\n")}) for number in range(4)
    ]
    packed(repository)
    if repository.git("config", "core.bare") == "true":
        repository.path = (tmp_path / "app" / ".git").rename(tmp_path / "app.git")
    for sha in shas:
        assert read(repository, sha) == by_git(repository, sha)
    assert read(repository, *shas[:2]) == by_git(repository, shas[0]) | by_git(repository, shas[1])


def test_a_submodule_is_left_out(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    repository.commit(FILES)
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    repository.git("commit", "-qm", "Add a module")
    assert "1" * 40 not in read(repository, repository.git("rev-parse", "HEAD"))


def _pack(git_dir: Path, suffix: str) -> Path:
    (found,) = (git_dir / "objects" / "pack").glob(f"*{suffix}")
    found.chmod(0o600)
    return found


def _changed(suffix: str, change: Callable[[bytes], bytes]) -> Callable[[Path, Path], object]:
    return lambda git_dir, _: (path := _pack(git_dir, suffix)).write_bytes(change(path.read_bytes()))


def _replaced(git_dir: Path, suffix: str, make: Callable[[Path], object]) -> None:
    path = _pack(git_dir, suffix)
    path.unlink()
    make(path)


def _far(index: bytes) -> bytes:
    """An index all of whose offsets are in the further table."""
    count = int.from_bytes(index[8 + 255 * 4 : 8 + 256 * 4], "big")
    begin = 8 + 1024 + count * 24
    return index[:begin] + b"\xff" * (count * 4) + index[begin + count * 4 :]


STRANGE: dict[str, Callable[[Path, Path], object]] = {
    "alternates": lambda git_dir, place: (git_dir / "objects" / "info" / "alternates").write_text(
        f"{place}\n"
    ),
    "linked worktree": lambda git_dir, _: (git_dir / "commondir").write_text("../.."),
    "no objects": lambda git_dir, _: shutil.rmtree(git_dir / "objects"),
    "no packs": lambda git_dir, _: shutil.rmtree(git_dir / "objects" / "pack"),
    "no pack": lambda git_dir, _: _pack(git_dir, ".pack").unlink(),
    "fifo for a pack": lambda git_dir, _: _replaced(git_dir, ".pack", os.mkfifo),
    "fifo for an index": lambda git_dir, _: _replaced(git_dir, ".idx", os.mkfifo),
    "directory for a pack": lambda git_dir, _: _replaced(git_dir, ".pack", Path.mkdir),
    "old index": _changed(".idx", lambda index: index[8:]),
    "cut index": _changed(".idx", lambda index: index[:1100]),
    "empty index": _changed(".idx", lambda index: b""),
    "wrong numbers": _changed(".idx", lambda index: index[:8] + os.urandom(1024) + index[1032:]),
    "backward numbers": _changed(
        ".idx", lambda index: index[:8] + b"\x7f\xff\xff\xff" * 255 + bytes(4) + index[1032:]
    ),
    "far offsets": _changed(".idx", _far),
    "cut pack": _changed(".pack", lambda pack: pack[:40]),
    "other bytes in the pack": _changed(".pack", lambda pack: pack[:12] + os.urandom(len(pack) - 12)),
    "zeros in the pack": _changed(".pack", lambda pack: pack[:12] + bytes(len(pack) - 12)),
    "endless numbers in the pack": _changed(".pack", lambda pack: b"\xff" * len(pack)),
    # A delta of no distance is its own base.
    "delta of itself": _changed(".pack", lambda pack: (b"\x62\x00" + zlib.compress(b"\0\0")) * 400),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
async def test_a_strange_repository_is_left_to_git(
    change: Callable[[Path, Path], object], tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "app")
    sha = repository.commit(FILES)
    repository.git("gc", "--quiet")
    change(repository.path / ".git", tmp_path)
    request, policy = job_request(repo_url=repository.url, commit_sha=sha), GitPolicy(protocols=("file",))
    async with asyncio.timeout(30):
        with pytest.raises(LeftToGit):
            await fetch_small(request, [sha], policy=policy)


def _loose(git_dir: Path, sha: str, content: bytes) -> None:
    path = git_dir / "objects" / sha[:2] / sha[2:]
    path.chmod(0o600)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zlib",
        zlib.compress(b"commit 0\0"),
        zlib.compress(b"no head"),
        zlib.compress(b"\xff\0"),
        zlib.compress(bytes(100 * 1024**2)),
        zlib.compress(b"commit 3\0abc")[:-2],
    ],
    ids=["empty", "no zlib", "another object", "no head", "no text", "bomb", "cut"],
)
async def test_a_file_that_is_not_its_object_is_left_to_git(content: bytes, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    sha = repository.commit(FILES)
    _loose(repository.path / ".git", sha, content)
    request, policy = job_request(repo_url=repository.url, commit_sha=sha), GitPolicy(protocols=("file",))
    with pytest.raises(LeftToGit):
        await fetch_small(request, [sha], policy=policy)


@pytest.mark.parametrize("number", [300, 1])
def test_a_large_commit_is_left_to_git(number: int, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    sha = repository.commit({f"{each}.txt": f"{each}\n" * (300_000 // number) for each in range(number)})
    with pytest.raises(LeftToGit):
        read_commits(repository.path, [sha], "sha1")


def test_very_many_packs_are_left_to_git(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    sha = repository.commit(FILES)
    repository.git("gc", "--quiet")
    files = [_pack(repository.path / ".git", suffix) for suffix in (".pack", ".idx")]
    for number in range(1, MAX_PACKS + 1):
        assert read_commits(repository.path, [sha], "sha1").objects
        for file in files:
            shutil.copy(file, file.with_stem(f"copy-{number}"))
    with pytest.raises(LeftToGit):
        read_commits(repository.path, [sha], "sha1")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    sha = repository.commit(FILES)
    repository.git("gc", "--quiet")
    for name in (sha, "1" * 40):
        with nullcontext() if name == sha else pytest.raises(LeftToGit):
            read_commits(repository.path, [name], "sha1")
    targets = [link.resolve() for link in Path("/proc/self/fd").iterdir()]
    assert not [target for target in targets if target.is_relative_to(tmp_path)]


async def test_a_disk_that_never_answers_takes_no_thread_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(small_fetches, "FETCH_SECONDS", 0.02)
    monkeypatch.setattr(small_fetches, "read_commits", lambda *_: answers.wait())
    request, policy = job_request(repo_url=f"file://{tmp_path}"), GitPolicy(protocols=("file",))
    try:
        for _ in range(40):
            with pytest.raises(LeftToGit):
                await fetch_small(request, [request.commit_sha], policy=policy)
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: True)
    finally:
        answers.set()
