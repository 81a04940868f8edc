"""Further checkouts of a commit copy its objects, and no job changes what others get."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import (
    CredentialChoice,
    CredentialRule,
    TokenAccess,
    WithheldCredential,
)
from solstice_orchestrator.git.objects.object_cache import CommitKey, ObjectCache
from tests.builders import job_request
from tests.executor_harness import NEEDS_DISKS, ExecutorHarness, mounted_disk, replace_checkout
from tests.repositories import GIT_ENVIRONMENT, Repository

POLICY = GitPolicy(protocols=("file",))


class Checkouts:
    """Checks out commits of one repository with one cache."""

    def __init__(self, folder: Path, max_bytes: int = 1024**3) -> None:
        self.folder = folder
        self.repository = Repository(folder / "harbour")
        self.sha = self.repository.commit({"hello.txt": "ahoy\n", "below/run.sh": "#!/bin/sh\n"})
        self.request = job_request(repo_url=self.repository.url, commit_sha=self.sha, trusted=True)
        self.directory = folder / "work" / "git" / "objects"
        self.cache = ObjectCache(self.directory, max_bytes)
        self._count = 0

    async def check_out(self, request: JobRequestV1 | None = None) -> Path:
        self._count += 1
        place = self.folder / f"place-{self._count}"
        await check_out(
            request or self.request,
            place,
            policy=POLICY,
            scratch=self.folder / "work" / "git",
            objects=self.cache,
        )
        return place

    def lose_repository(self) -> None:
        """From now on nothing can be fetched."""
        shutil.rmtree(self.repository.path)

    def cached(self) -> list[Path]:
        return sorted(self.directory.iterdir())


@pytest.fixture
def checkouts(tmp_path: Path) -> Checkouts:
    return Checkouts(tmp_path)


def git_output(directory: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=directory, env=GIT_ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout.strip()


async def test_the_second_checkout_is_as_the_first_and_fetches_nothing(checkouts: Checkouts) -> None:
    first = await checkouts.check_out()
    checkouts.lose_repository()
    second = await checkouts.check_out()
    for place in (first, second):
        assert git_output(place, "rev-list", "--objects", "HEAD", "--no-object-names") == git_output(
            first, "rev-list", "--objects", "HEAD", "--no-object-names"
        )
        assert git_output(place, "fsck", "--strict") == ""
        assert git_output(place, "status", "--porcelain") == ""
        assert git_output(place, "remote", "get-url", "origin") == checkouts.repository.url
        assert (place / "hello.txt").read_text() == "ahoy\n"


async def test_checkouts_at_once_fetch_once(checkouts: Checkouts) -> None:
    fetches: list[str] = []
    git_dirs = [checkouts.folder / f"bare-{number}" for number in range(8)]

    async def fetch(git_dir: Path) -> None:
        fetches.append(git_dir.name)
        await asyncio.sleep(0.01)
        shutil.copytree(source, git_dir, dirs_exist_ok=True)

    source = await checkouts.check_out() / ".git"
    cache = ObjectCache(checkouts.directory, 1024**2)
    for git_dir in git_dirs:
        (git_dir / "objects").mkdir(parents=True)
    key = CommitKey.of(checkouts.request, POLICY)
    await asyncio.gather(*(cache.provide(key, each, partial(fetch, each)) for each in git_dirs))
    assert fetches == ["bare-0"]
    packs = [sorted(path.name for path in (each / "objects" / "pack").iterdir()) for each in git_dirs]
    assert {path.rpartition(".")[2] for path in packs[0]} >= {"pack", "idx"}
    assert all(set(each) <= set(packs[0]) and len(each) == 2 for each in packs[1:])


async def test_after_a_fetch_that_failed_the_next_checkout_fetches(checkouts: Checkouts) -> None:
    key, place = CommitKey.of(checkouts.request, POLICY), checkouts.folder / "x"
    (place / "objects" / "pack").mkdir(parents=True)
    begun: list[int] = []

    async def fail() -> None:
        begun.append(1)
        await asyncio.sleep(0)
        raise CheckoutFailed(Reason.CHECKOUT_FAILED, "away")

    ended = await asyncio.gather(
        *(checkouts.cache.provide(key, place, fail) for _ in range(3)), return_exceptions=True
    )
    assert [type(each) for each in ended] == [CheckoutFailed] * 3
    assert len(begun) == 3
    assert (await checkouts.check_out() / "hello.txt").exists()


def _replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".x")))


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILS: dict[str, Callable[[Path], object]] = {
    "other bytes": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x" * 100),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "a pipe": _replace_by_pipe,
    "a link": _replace_by_link,
    "a directory": _replace_by_directory,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
async def test_what_was_changed_in_the_cache_reaches_no_checkout(
    checkouts: Checkouts, spoil: Callable[[Path], object]
) -> None:
    await checkouts.check_out()
    for path in checkouts.cached():
        spoil(path)
    second = await checkouts.check_out()
    assert git_output(second, "fsck", "--strict") == ""
    assert (second / "hello.txt").read_text() == "ahoy\n"
    # It was fetched, and is cached as it should be.
    checkouts.lose_repository()
    assert (await checkouts.check_out() / "hello.txt").read_text() == "ahoy\n"


async def test_a_job_that_changes_its_repository_changes_no_other_ones(checkouts: Checkouts) -> None:
    first = await checkouts.check_out()
    second = await checkouts.check_out()
    for place in (first, second):
        for path in (place / ".git" / "objects" / "pack").iterdir():
            path.chmod(0o600)
            path.write_bytes(b"poison")
    checkouts.lose_repository()
    assert git_output(await checkouts.check_out(), "fsck", "--strict") == ""


async def test_runs_that_are_not_trusted_share_nothing_with_those_that_are(checkouts: Checkouts) -> None:
    await checkouts.check_out()
    checkouts.lose_repository()
    for stranger in (False, None):
        with pytest.raises(CheckoutFailed):
            await checkouts.check_out(checkouts.request.model_copy(update={"trusted": stranger}))


async def test_what_a_credential_has_fetched_is_for_that_credential_alone(checkouts: Checkouts) -> None:
    """A run that gets none could name a commit of a private repository."""
    source, fetches = await checkouts.check_out() / ".git", list[CredentialChoice]()
    cache = ObjectCache(checkouts.directory, 1024**2)
    token = CredentialRule(repositories=("*",), access=TokenAccess(token="env:TOKEN"))

    async def fetch(git_dir: Path, choice: CredentialChoice) -> None:
        fetches.append(choice)
        shutil.copytree(source, git_dir, dirs_exist_ok=True)

    for number, choice in enumerate([token, token, None, WithheldCredential("for trusted runs alone")]):
        (git_dir := checkouts.folder / f"bare-{number}").mkdir()
        (git_dir / "objects").mkdir()
        key = CommitKey.of(checkouts.request, POLICY)._replace(credential=choice)
        await cache.provide(key, git_dir, partial(fetch, git_dir, choice))
    assert fetches == [token, None, WithheldCredential("for trusted runs alone")]


async def test_the_cache_keeps_what_was_used_last_below_its_limit(tmp_path: Path) -> None:
    checkouts = Checkouts(tmp_path, max_bytes=50_000)
    requests = [
        checkouts.request.model_copy(
            update={"commit_sha": checkouts.repository.commit({f"{number}.bin": os.urandom(9_000).hex()})}
        )
        for number in range(3)
    ]
    for request in requests:
        await checkouts.check_out(request)
        assert sum(path.stat().st_size for path in checkouts.cached()) <= 50_000
    checkouts.lose_repository()
    await checkouts.check_out(requests[-1])
    with pytest.raises(CheckoutFailed):
        await checkouts.check_out(requests[0])


async def test_a_cache_of_nothing_fetches_each_time(tmp_path: Path) -> None:
    checkouts = Checkouts(tmp_path, max_bytes=0)
    await checkouts.check_out()
    assert not checkouts.directory.exists()


@NEEDS_DISKS
async def test_on_a_full_disk_a_commit_is_checked_out_and_the_cache_gives_back_its_space(
    tmp_path: Path,
) -> None:
    checkouts = Checkouts(tmp_path)
    large = checkouts.request.model_copy(
        update={"commit_sha": checkouts.repository.commit({"large.bin": os.urandom(2 * 1024**2).hex()})}
    )
    with mounted_disk(tmp_path / "small", mib=1) as disk:
        checkouts.directory = disk / "a" / "b" / "objects"
        checkouts.cache = ObjectCache(checkouts.directory, 1024**3)
        await checkouts.check_out()
        assert checkouts.cached() != []
        assert (await checkouts.check_out(large) / "large.bin").stat().st_size == 4 * 1024**2
        assert checkouts.cached() == []


async def test_jobs_of_one_commit_run_after_its_repository_is_gone(harness: ExecutorHarness) -> None:
    objects = ObjectCache(harness.workspaces.scratch / "objects", 1024**3)
    replace_checkout(harness, objects=objects)
    assert (await harness.run("cat hello.txt")).state is JobState.SUCCEEDED
    shutil.rmtree(harness.repository.path)
    # A job finds the cache, since it is the same user, and can empty it; the next commit is fetched again.
    assert (await harness.run("cat hello.txt; rm -rf ../../git/objects")).state is JobState.SUCCEEDED
    assert harness.text.count("hello from the commit") == 2
    assert (await harness.run("true")).reason is Reason.COMMIT_NOT_FOUND
