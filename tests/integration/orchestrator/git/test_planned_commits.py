"""A small commit that planning has fetched is checked out without git, as git would."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.commit_group import FilesRequest, RepositorySizes, fetch_group
from solstice_orchestrator.git.credentials.credential_rules import (
    PROVEN_SECONDS,
    CredentialRule,
    TokenAccess,
    WithheldCredential,
)
from solstice_orchestrator.git.objects.checkout_copy import MAX_ENTRIES
from solstice_orchestrator.git.objects.commit_checkout import whole_commit
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.objects.pack_file import (
    MAX_OBJECT_BYTES,
    LeftToGit,
    PackedObject,
    SmallPack,
    read_pack,
    with_delta,
)
from solstice_orchestrator.git.objects.pack_writing import written_pack
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.views import JobView
from solstice_orchestrator.worker.executors.disk import size_of
from tests.builders import job_request
from tests.executor_harness import NEEDS_DISKS, mounted_disk, open_harness, replace_checkout
from tests.gated_jobs import Commit, all_ended, publish_requests, wait_for_jobs
from tests.repositories import GIT_ENVIRONMENT, Repository, files_below, written_copy
from tests.servers.orchestrator import SharedFiles, orchestrator

POLICY = GitPolicy(protocols=("file",))
LIMIT = 1024**3
PATHS = (".solstice/workflow.kdl",)


class Harbour:
    """A small repository, and what planning keeps of its commits."""

    def __init__(self, place: Path, *, object_format: str = "sha1") -> None:
        self.place, self.now = place, 100.0
        self.repository = Repository(place / "harbour", object_format=object_format)
        self.planned = PlannedCommits(LIMIT, clock=lambda: self.now)
        self._sizes = RepositorySizes()
        self.repository.commit({"first.txt": "of an earlier commit\n"})

    def request(self, sha: str) -> JobRequestV1:
        return job_request(repo_url=self.repository.url, commit_sha=sha, trusted=True)

    def key(self, sha: str) -> CommitKey:
        return CommitKey.of(self.request(sha), POLICY)

    async def plan(self, *shas: str) -> None:
        """Fetch the commits together, after one fetch that shows that the repository is small."""
        for each in (shas[:1], shas):
            await fetch_group(
                [FilesRequest(request=self.request(sha), paths=PATHS) for sha in each],
                policy=POLICY,
                scratch=self.place / "scratch",
                sizes=self._sizes,
                planned=self.planned,
            )

    async def written(self, sha: str) -> Path | None:
        (place := self.place / f"copy of {sha}").mkdir()
        return place if written_copy(await self.planned.find(self.key(sha)), place) else None

    async def by_git(self, sha: str) -> Path:
        place = self.place / f"by git {sha}"
        await check_out(self.request(sha), place, policy=POLICY, scratch=self.place / "scratch")
        return place


def files_of(place: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all below, except for packs, the index and the reflog."""
    return {
        name: file
        for name, file in files_below(place).items()
        if name != ".git/index" and not name.startswith((".git/objects/pack/pack-", ".git/logs"))
    }


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=place, env=GIT_ENVIRONMENT, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
async def test_commits_of_one_fetch_are_written_as_git_checks_them_out(
    tmp_path: Path, object_format: str
) -> None:
    harbour = Harbour(tmp_path, object_format=object_format)
    repository = harbour.repository
    (repository.path / "a link").symlink_to("below/run.sh")
    (repository.path / "run").write_text("#!/bin/sh\n")
    (repository.path / "run").chmod(0o755)
    numbers = [f"{number}\n" for number in range(5000)]
    shas = [
        repository.commit(
            {
                ".gitignore": "*.o\n",
                ".github/workflows/x.yml": "on: push\n",
                "below/deeper/empty": "",
                "below/run.sh": b"\0\xff",
                "below.txt": "sorts before what is below\n",
                "x" * 200: "a long name\n",
                # The server sends the later ones as deltas.
                "large.txt": "".join([*numbers[:number], "another line\n", *numbers[number:]]),
            }
        )
        for number in range(3)
    ]
    await harbour.plan(*shas)
    for sha in shas:
        copy, first = await harbour.written(sha), await harbour.by_git(sha)
        assert copy is not None
        assert files_of(copy) == files_of(first)
        assert git(copy, "ls-files", "--stage") == git(first, "ls-files", "--stage")
        assert git(copy, "rev-parse", "HEAD").strip() == sha
        assert git(copy, "log", "--format=%s") == "Change files\n"
        # These two trust the times and inodes of the index; `git status` would correct it.
        git(copy, "diff-files", "--quiet")
        git(copy, "diff-index", "--quiet", "HEAD")
        assert git(copy, "fsck", "--strict", "--unreachable") == ""
        assert git(copy, "cat-file", "--batch-all-objects", "--batch-check").count("\n") == git(
            first, "cat-file", "--batch-all-objects", "--batch-check"
        ).count("\n")


async def test_a_first_commit_is_written_as_git_does(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.git("rev-parse", "HEAD")
    await harbour.plan(sha)
    copy = await harbour.written(sha)
    assert copy is not None
    assert files_of(copy) == files_of(await harbour.by_git(sha))


@pytest.mark.parametrize(
    "files",
    [
        {".gitattributes": "* text eol=crlf\n"},
        {"below/.gitattributes": "* text eol=crlf\n"},
        {".gitmodules": "[submodule]\n"},
        {"ü": "not the same on every disk\n"},
        {"a\\b": "two names elsewhere\n"},
        {"a:b": "a stream elsewhere\n"},
        {"ends with a dot.": "another name elsewhere\n"},
        {"Same": "one file elsewhere\n", "same": "or two\n"},
        {"large.bin": os.urandom(MAX_OBJECT_BYTES)},
        {f"{number}.txt": b"x" for number in range(MAX_ENTRIES)},
    ],
    ids=lambda files: next(iter(files)),
)
async def test_what_git_treats_specially_is_left_to_git(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit(files)
    await harbour.plan(sha)
    assert await harbour.written(sha) is None
    assert list((tmp_path / f"copy of {sha}").iterdir()) == []


async def test_a_submodule_is_left_to_git(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},other")
    harbour.repository.git("commit", "--quiet", "--message", "Name a submodule")
    sha = harbour.repository.git("rev-parse", "HEAD")
    await harbour.plan(sha)
    assert await harbour.written(sha) is None


async def test_a_planned_commit_is_for_the_same_trust_credential_and_checkout_alone(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit({"a": "ahoy\n"})
    await harbour.plan(sha)
    key = harbour.key(sha)
    token = CredentialRule(repositories=("*",), access=TokenAccess(token="env:TOKEN"))
    for other in (
        key._replace(trusted=False),
        key._replace(credential=token),
        key._replace(credential=WithheldCredential("for trusted runs alone")),
        key._replace(repo_url=key.repo_url + "/"),
        key._replace(commit_sha="0" * 40),
        key._replace(spec=CheckoutSpec(depth=0)),
    ):
        (empty := tmp_path / "empty").mkdir(exist_ok=True)
        assert not written_copy(await harbour.planned.find(other), empty)
        assert list(empty.iterdir()) == []
    assert await harbour.written(sha)


async def test_a_planned_commit_is_proven_for_a_while_alone(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit({"a": "ahoy\n"})
    await harbour.plan(sha)
    harbour.now += PROVEN_SECONDS
    assert await harbour.written(sha) is None


async def test_the_commits_planned_last_stay_below_the_limit(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.planned = PlannedCommits(16 * 50_000)
    shas = [
        harbour.repository.commit({"random.txt": os.urandom(10_000).hex(), "n": str(number)})
        for number in range(5)
    ]
    for sha in shas:
        await harbour.plan(sha)
    assert await harbour.written(shas[0]) is None
    assert await harbour.written(shas[-1])


async def test_a_changed_pack_has_no_object_of_that_name(tmp_path: Path) -> None:
    """A job of the same user may change what git has fetched."""
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit({"a": "ahoy\n"})
    objects = objects_of(harbour.repository, sha)
    blob = harbour.repository.git("rev-parse", f"{sha}:a")
    for content in (b"ahoy\n", b"poison\n"):
        _, pack, _ = written_pack({**objects, blob: PackedObject("blob", content)}, "sha1")
        harbour.planned.keep(harbour.key(sha), read_pack(pack, "sha1"))
        place = tmp_path / f"place of {len(content)}"
        place.mkdir()
        is_true = content == b"ahoy\n"
        assert written_copy(await harbour.planned.find(harbour.key(sha)), place) is is_true
        assert (place / "a").exists() is is_true


def objects_of(repository: Repository, sha: str) -> dict[str, PackedObject]:
    """All objects of a commit without directories."""
    listed = repository.git("rev-list", "--objects", "--no-walk", sha)
    ids = [line.split()[0] for line in listed.splitlines()]
    return {
        each: PackedObject(repository.git("cat-file", "-t", each), raw_object(repository, each))
        for each in ids
    }


def raw_object(repository: Repository, object_id: str) -> bytes:
    kind = repository.git("cat-file", "-t", object_id)
    return subprocess.run(
        ["git", "cat-file", kind, object_id],
        cwd=repository.path,
        env=GIT_ENVIRONMENT,
        check=True,
        capture_output=True,
    ).stdout


@pytest.mark.parametrize(
    "delta",
    [
        b"\x05\x02\x90\x05",
        b"\x05\x06\x90\x05\x02x",
        b"\x05\x05\x91\x03\x05",
        b"\x04\x04\x90\x04",
        b"\x05\xff\xff\xff\x7f" + b"\x90\x05" * 10,
        b"\x05" + b"\xff" * 100,
        b"\x05\x05\x00" + b"\x90\x05",
    ],
    ids=["longer", "cut", "past its base", "other base", "huge", "endless number", "reserved"],
)
def test_a_wrong_delta_is_left_to_git(delta: bytes) -> None:
    assert with_delta(b"abcde", b"\x05\x07\x91\x01\x04\x03xyz") == b"bcdexyz"
    with pytest.raises((LeftToGit, IndexError)):
        with_delta(b"abcde", delta)


ENTRIES = {
    "delta to another pack": b"\x72" + bytes(20) + zlib.compress(b"\0\0"),
    "base is itself": b"\x62\0" + zlib.compress(b"\0\0"),
    "base before all": b"\x62\xff\x7f" + zlib.compress(b"\0\0"),
    "base far before all": b"\x62" + b"\xff" * 50_000 + b"\0",
    "endless size": b"\xb2" + b"\xff" * 50_000 + b"\0",
    "large": b"\xb0\xff\xff\x7f" + zlib.compress(bytes(100)),
    "no kind": b"\x52" + zlib.compress(b"xx"),
    "a tag": b"\x42" + zlib.compress(b"xx"),
    "not deflated": b"\x32" + b"x" * 100,
    "shorter": b"\x3f" + zlib.compress(bytes(10)),
    "longer": b"\x33" + zlib.compress(bytes(10)),
    "bomb": b"\x33" + zlib.compress(bytes(10**7)),
    "none": b"",
    "two": b"\x31" + zlib.compress(b"x") + b"\x31" + zlib.compress(b"y"),
}


def pack_with(entries: bytes, count: int = 1) -> bytes:
    pack = b"PACK\0\0\0\2" + count.to_bytes(4, "big") + entries
    return pack + hashlib.sha1(pack, usedforsecurity=False).digest()


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_strange_pack_is_left_to_git(entry: str) -> None:
    (one,) = read_pack(pack_with(b"\x31" + zlib.compress(b"x")), "sha1").objects.values()
    assert one == PackedObject("blob", b"x")
    with pytest.raises(LeftToGit):
        read_pack(pack_with(ENTRIES[entry]), "sha1")


@pytest.mark.parametrize(
    "pack",
    [
        b"",
        bytes(20),
        pack_with(b"")[:-1] + b"x",
        pack_with(b"", count=2**32 - 1),
        pack_with(bytes(300_000), 0),
    ],
    ids=["empty", "short", "checksum", "billions", "large"],
)
def test_what_is_no_small_pack_is_left_to_git(pack: bytes) -> None:
    with pytest.raises(LeftToGit):
        read_pack(pack, "sha1")


def test_a_pack_of_many_zeros_is_left_to_git() -> None:
    zeros = b"\xb0\x80\x40" + zlib.compress(bytes(2**17))
    with pytest.raises(LeftToGit):
        read_pack(pack_with(zeros * 50, 50), "sha1")
    assert read_pack(pack_with(zeros * 10, 10), "sha1").size_bytes == 10 * 2**17


@pytest.mark.parametrize(
    "change",
    [
        lambda commit: commit.replace(b"author ", b"auteur "),
        lambda commit: commit.replace(b" <", b"<", 1),
        lambda commit: commit.replace(b"\ncommitter", b"0\ncommitter"),
        lambda commit: commit.replace(b"\nauthor", b"\nauthor A <a> 1 +0000\nauthor"),
        lambda commit: commit + b"\0",
    ],
    ids=["no author", "no space", "strange zone", "two authors", "NUL"],
)
async def test_a_commit_in_which_git_might_find_an_error_is_left_to_git(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit({"a": "ahoy\n"})
    rest = objects_of(harbour.repository, sha)
    commit = rest.pop(sha).content
    for content in (commit, change(commit)):
        own = PackedObject("commit", content)
        pack = read_pack(written_pack({"0" * 40: own, **rest}, "sha1")[1], "sha1")
        (name,) = [each for each, found in pack.objects.items() if found.kind == "commit"]
        if content == commit:
            assert [each.path for each in whole_commit(pack, name).entries] == ["a", "first.txt"]
        else:
            with pytest.raises(LeftToGit):
                whole_commit(pack, name)


@pytest.mark.parametrize(
    "entries",
    [
        b"100644 b\0%s100644 a\0%s",
        b"100644 a\0%s100644 a\0%s",
        b"100664 a\0%s",
        b"100644 .\0%s",
        b"100644 ..\0%s",
        b"100644 .git\0%s",
        b"100644 .GIT\0%s",
        b"100644 git~1\0%s",
        b"100644 a/b\0%s",
        b"100644 \0%s",
        b"40000 a\0%s",
        b"120000 a\0%s",
        b"100644 a\0%sx",
        b"x",
        b"",
    ],
)
def test_a_tree_in_which_git_might_find_an_error_is_left_to_git(entries: bytes) -> None:
    blob = PackedObject("blob", b"with a \0")
    blob_id = bytes.fromhex(next(iter(_read_written(blob))))
    tree = PackedObject("tree", entries.replace(b"%s", blob_id))
    tree_id = next(iter(_read_written(tree)))
    person = b"Mika Holm <mika@harbour.example> 1700000000 +0000\n"
    commit = PackedObject(
        "commit", b"tree %s\nauthor %scommitter %s\nx\n" % (tree_id.encode(), person, person)
    )
    found = _read_written(commit, tree, blob)
    (sha,) = [each for each, one in found.items() if one.kind == "commit"]
    with pytest.raises(LeftToGit):
        whole_commit(SmallPack(found, 0), sha)


def _read_written(*objects: PackedObject) -> Mapping[str, PackedObject]:
    """The objects with the names that reading gives them."""
    named = {f"{number:040x}": each for number, each in enumerate(objects)}
    return read_pack(written_pack(named, "sha1")[1], "sha1").objects


async def test_a_job_of_a_planned_commit_needs_no_git_host(tmp_path: Path) -> None:
    repository, planned = Repository(tmp_path / "harbour"), PlannedCommits(LIMIT)
    async with open_harness(tmp_path / "work", repository) as harness:
        replace_checkout(harness, planned=planned)
        async with asyncio.TaskGroup() as tasks:
            files = CommitFiles(tasks, POLICY, tmp_path / "scratch", planned=planned)
            for sha in (repository.commit({"other.txt": "x"}), harness.sha):
                await files.of(job_request(repo_url=repository.url, commit_sha=sha), PATHS)
        shutil.rmtree(repository.path)
        script = "cat hello.txt && git diff-index --quiet HEAD && git log --oneline"
        for _ in range(2):
            assert (await harness.run(script)).state is JobState.SUCCEEDED
        assert harness.text.count("hello from the commit") == 2
        replace_checkout(harness, planned=PlannedCommits(0))
        assert (await harness.run("true")).reason is Reason.COMMIT_NOT_FOUND


@NEEDS_DISKS
async def test_on_a_full_disk_a_composed_checkout_is_the_machines_failure_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    harbour = Harbour(tmp_path)
    sha = harbour.repository.commit({"chart.txt": "x" * 100_000, PATHS[0]: ""})
    await harbour.plan(sha)
    with mounted_disk(tmp_path / "disk", mib=2) as disk:
        async with open_harness(disk / "work", Repository(tmp_path / "other")) as harness:
            harness.repository, harness.sha = harbour.repository, sha
            replace_checkout(harness, planned=harbour.planned)
            # Nothing else can bring the commit.
            shutil.rmtree(harbour.repository.path)
            for is_full in (True, False, True, False):
                left = os.statvfs(disk).f_bfree * os.statvfs(disk).f_bsize
                (disk / "other").write_bytes(bytes(left - 64 * 1024) if is_full else b"")
                outcome = await harness.run("test $(cat chart.txt | wc -c) = 100000 && git fsck --strict")
                if is_full:
                    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.MACHINE_FAILED)
                    assert "No space left on device" in outcome.detail
                else:
                    assert outcome.state is JobState.SUCCEEDED, harness.text
        assert size_of(disk).size_bytes < 64 * 1024


def _have_ended(count: int, views: Sequence[JobView]) -> bool:
    return len(views) == count and all_ended(views)


async def test_a_further_push_to_a_small_repository_of_this_machine_needs_no_git(tmp_path: Path) -> None:
    """In a whole orchestrator, whose planning and jobs share what was fetched."""
    program, called = tmp_path / "bin" / "git", tmp_path / "called"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\nPATH="{os.environ["PATH"]}" exec git "$@"\n')
    program.chmod(0o755)
    (tmp_path / "service").mkdir()
    shared, repository = SharedFiles(directory=tmp_path / "service"), Repository(tmp_path / "harbour")
    async with open_store(shared.database_url) as store:
        with orchestrator(shared, PATH=f"{program.parent}:{os.environ['PATH']}"):
            for count in (1, 2):
                called.write_text("")
                sha = repository.commit(
                    {".solstice/job.sh": "test $(git rev-list --count HEAD) = 1\n", "n": str(count)}
                )
                await publish_requests(shared, Commit(repository, sha))
                await wait_for_jobs(store, partial(_have_ended, count))
            views = await store.jobs(limit=9)
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2
    # The job's own commands find another git.
    assert called.read_text() == ""
