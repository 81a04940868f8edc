"""Commits with harmful trees fail themselves or do no harm, and never fail the machine."""

import asyncio
import os
import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy, GitResult
from solstice_orchestrator.git.commit_group import FilesRequest, SingleFetch, fetch_single
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository

SCRIPT = ".solstice/job.sh"
DEPTH, WIDTH = 7, 10
"""Ten million paths."""
KIB = 1024


def policy(seconds: float = 60.0, mib: int = 64) -> GitPolicy:
    return GitPolicy(
        protocols=("file",),
        timeout_seconds=seconds,
        max_bytes=mib * KIB * KIB,
        max_memory_bytes=256 * KIB * KIB,
        environment={"PATH": os.environ["PATH"]},
    )


class Forge:
    """A repository that takes trees as they are given, however odd."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder)
        self.repository.commit({SCRIPT: "true"})
        self.folder = self.repository.git("rev-parse", "HEAD:.solstice")

    def written(self, kind: str, content: bytes) -> str:
        done = subprocess.run(
            ["git", "hash-object", "-t", kind, "--literally", "-w", "--stdin"],
            cwd=self.repository.path,
            env=GIT_ENVIRONMENT,
            input=content,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode().strip()

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """A tree of entries of a mode, an id and a name."""
        ordered = sorted(entries, key=lambda entry: entry[2] + ("/" if entry[0] == "40000" else ""))
        return self.written(
            "tree",
            b"".join(
                f"{mode} {name}".encode() + b"\0" + bytes.fromhex(object_id)
                for mode, object_id, name in ordered
            ),
        )

    def commit(self, *entries: tuple[str, str, str]) -> str:
        root = self.tree(("40000", self.folder, ".solstice"), *entries)
        sha = self.repository.git("commit-tree", "-m", "odd", root)
        self.repository.git("update-ref", "refs/heads/main", sha)
        return sha


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge")


def bomb(forge: Forge, content: bytes, depth: int = DEPTH) -> str:
    """A commit of a few objects and ten million paths, or fewer by `depth`."""
    below, mode = forge.written("blob", content), "100644"
    for _ in range(depth):
        below, mode = forge.tree(*((mode, below, f"{number}") for number in range(WIDTH))), "40000"
    return forge.commit((mode, below, "bomb"))


async def checked_out(forge: Forge, sha: str, place: Path, limits: GitPolicy) -> Reason | None:
    """Why it failed; None when it did not."""
    request = job_request(repo_url=forge.repository.url, commit_sha=sha, ref=None)
    try:
        await check_out(request, place, policy=limits, scratch=place.parent / "scratch")
    except CheckoutFailed as error:
        print(error.reason, error.detail)  # noqa: T201  what git said
        return error.reason
    return None


async def planned(forge: Forge, sha: str, folder: Path, limits: GitPolicy) -> bytes:
    """The script that planning reads."""
    want = FilesRequest(
        request=job_request(repo_url=forge.repository.url, commit_sha=sha, ref=None), paths=(SCRIPT,)
    )
    answer = await fetch_single(want, SingleFetch.AGAIN, policy=limits, scratch=folder / "scratch")
    assert not isinstance(answer, CheckoutFailed), answer
    return answer[SCRIPT]


async def test_a_tree_of_millions_of_paths_is_planned_and_its_checkout_ends_as_its_own_failure(
    forge: Forge, tmp_path: Path
) -> None:
    sha = bomb(forge, b"x" * 4 * KIB)
    tracemalloc.start()
    try:
        assert await planned(forge, sha, tmp_path, policy()) == b"true"
        reason = await checked_out(forge, sha, tmp_path / "source", policy())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason is Reason.COMMIT_UNUSABLE
    assert peak < 64 * KIB * KIB


async def test_a_tree_too_large_for_gits_memory_is_the_commits_failure(forge: Forge, tmp_path: Path) -> None:
    sha = bomb(forge, b"x")
    limits = replace(policy(), max_bytes=KIB**4, max_memory_bytes=32 * KIB * KIB)
    assert await checked_out(forge, sha, tmp_path / "source", limits) is Reason.COMMIT_UNUSABLE


async def test_a_hundred_thousand_empty_files_take_more_than_the_disk_limit(
    forge: Forge, tmp_path: Path
) -> None:
    sha = bomb(forge, b"", depth=5)
    assert await checked_out(forge, sha, tmp_path / "source", policy(mib=4)) is Reason.COMMIT_UNUSABLE


@pytest.mark.parametrize(
    ("mib", "reason"), [(64, Reason.COMMIT_UNUSABLE), (KIB * KIB, Reason.CHECKOUT_FAILED)]
)
async def test_when_time_is_up_a_tree_with_too_many_paths_is_the_commits_failure_and_no_other(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, reason: Reason
) -> None:
    sha = bomb(forge, b"x", depth=5)
    limits = policy(mib=mib)
    whole = Git.run

    async def run(git: Git, *arguments: str, **options: Any) -> GitResult[bytes]:
        # A disk that writes nothing: git itself is quick or slow as the machine is.
        if arguments[0] == "checkout":
            await asyncio.Event().wait()
        return await whole(git, *arguments, **options)

    monkeypatch.setattr(Git, "run", run)
    assert await checked_out(forge, sha, tmp_path / "source", replace(limits, timeout_seconds=10)) is reason


LIES = ("\nerror: cannot fork", ": No space left on device\n", "\nfatal: unable to create thread\n")
"""Within a name, whole lines as git writes them on a machine that lacks something."""


def below(forge: Forge, depth: int, name: str) -> tuple[str, str, str]:
    """The entry of so many nested directories, with names of 200 bytes."""
    entry = ("100644", forge.written("blob", b"x"), "leaf")
    for _ in range(depth):
        entry = ("40000", forge.tree(entry), "d" * 200)
    return (*entry[:2], name)


@pytest.mark.parametrize("lie", ["", *LIES], ids=["honest", "fork", "space", "thread"])
@pytest.mark.parametrize("target", [b"", b"\0there", b"t" * 5000], ids=["empty", "a zero byte", "too long"])
async def test_a_link_that_no_file_system_holds_is_the_commits_failure_under_any_name(
    forge: Forge, tmp_path: Path, target: bytes, lie: str
) -> None:
    sha = forge.commit(("120000", forge.written("blob", target), f"link{lie}"))
    assert await planned(forge, sha, tmp_path, policy()) == b"true"
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is Reason.COMMIT_UNUSABLE


@pytest.mark.parametrize("lie", ["", *LIES], ids=["honest", "fork", "space", "thread"])
async def test_a_path_that_no_file_system_holds_is_the_commits_failure_under_any_name(
    forge: Forge, tmp_path: Path, lie: str
) -> None:
    """Git cuts its message off before it says what is wrong."""
    sha = forge.commit(below(forge, 30, f"top{lie}"))
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is Reason.COMMIT_UNUSABLE


async def test_names_that_differ_in_case_alone_do_no_harm(forge: Forge, tmp_path: Path) -> None:
    one, other = forge.written("blob", b"one"), forge.written("blob", b"other")
    sha = forge.commit(("100644", one, "README"), ("100644", other, "readme"))
    assert await planned(forge, sha, tmp_path, policy()) == b"true"
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is None
    assert (tmp_path / "source" / "README").read_text() in {"one", "other"}


async def test_a_folder_and_a_link_whose_names_differ_in_case_alone_write_nothing_outside(
    forge: Forge, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    link = forge.written("blob", str(tmp_path / "outside").encode())
    inside = forge.tree(("100755", forge.written("blob", b"evil"), "hook"))
    sha = forge.commit(("120000", link, "a"), ("40000", inside, "A"))
    assert await checked_out(forge, sha, tmp_path / "source", policy()) in {None, Reason.COMMIT_UNUSABLE}
    assert list((tmp_path / "outside").iterdir()) == []


async def test_a_link_that_points_outside_is_a_link_and_nothing_is_written_through_it(
    forge: Forge, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    link = forge.written("blob", str(tmp_path / "outside").encode())
    sha = forge.commit(("120000", link, "way"))
    assert await planned(forge, sha, tmp_path, policy()) == b"true"
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is None
    assert (tmp_path / "source" / "way").is_symlink()
    assert list((tmp_path / "outside").iterdir()) == []


async def test_a_link_and_a_folder_of_one_name_are_the_commits_failure(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    link = forge.written("blob", str(tmp_path / "outside").encode())
    inside = forge.tree(("100755", forge.written("blob", b"evil"), "hook"))
    sha = forge.commit(("120000", link, "way"), ("40000", inside, "way"))
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is Reason.COMMIT_UNUSABLE
    assert list((tmp_path / "outside").iterdir()) == []


async def test_a_submodule_without_a_list_of_submodules_is_an_empty_folder(
    forge: Forge, tmp_path: Path
) -> None:
    sha = forge.commit(("160000", "a" * 40, "below"))
    assert await planned(forge, sha, tmp_path, policy()) == b"true"
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is None
    assert list((tmp_path / "source" / "below").iterdir()) == []


async def test_a_list_of_submodules_with_a_command_for_git_is_the_commits_failure(
    forge: Forge, tmp_path: Path
) -> None:
    listed = forge.written("blob", b'[submodule "x"]\n\tpath = below\n\turl = --upload-pack=touch\n')
    sha = forge.commit(("100644", listed, ".gitmodules"), ("160000", "a" * 40, "below"))
    assert await checked_out(forge, sha, tmp_path / "source", policy()) is Reason.COMMIT_UNUSABLE
