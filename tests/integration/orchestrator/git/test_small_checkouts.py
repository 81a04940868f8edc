"""A small checkout is written again without git, as git would write it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import (
    CredentialRule,
    TokenAccess,
    WithheldCredential,
)
from solstice_orchestrator.git.objects.checkout_copy import MAX_CHECKOUT_BYTES, MAX_ENTRIES
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from tests.builders import job_request
from tests.executor_harness import ExecutorHarness, replace_checkout
from tests.repositories import GIT_ENVIRONMENT, Repository, files_below, written_copy

POLICY = GitPolicy(protocols=("file",))
LIMIT = 1024**3


def written_files(place: Path) -> dict[str, tuple[int, bytes]]:
    """The mode and content of all below, without the index, which names inodes."""
    return {name: file for name, file in files_below(place).items() if Path(name).name != "index"}


def git_exit_code(place: Path, *arguments: str) -> int:
    return subprocess.run(["git", *arguments], cwd=place, env=GIT_ENVIRONMENT, check=False).returncode


async def checked_out(request: JobRequestV1, tmp_path: Path, name: str = "first") -> Path:
    place = tmp_path / name
    await check_out(request, place, policy=POLICY, scratch=tmp_path / "scratch")
    return place


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
async def test_a_copy_is_as_git_wrote_the_first_checkout(tmp_path: Path, object_format: str) -> None:
    repository = Repository(tmp_path / "harbour", object_format=object_format)
    repository.commit({"gone.txt": "of an earlier commit\n"})
    (repository.path / "gone.txt").unlink()
    (repository.path / "a link").symlink_to("below/run.sh")
    (repository.path / "run").write_text("#!/bin/sh\n")
    (repository.path / "run").chmod(0o755)
    files: dict[str, str | bytes] = {
        ".gitattributes": "*.dos text eol=crlf\n",
        "lines.dos": "one\ntwo\n",
        "below/deeper/empty": "",
        "below/run.sh": b"\0\xff",
        "ü\n name": "strange\n",
        "x" * 200: "a long name\n",
    }
    request = job_request(repo_url=repository.url, commit_sha=repository.commit(files), trusted=True)
    first, key = await checked_out(request, tmp_path), CommitKey.of(request, POLICY)
    checkouts = SmallCheckouts(LIMIT)
    checkouts.keep(key, first)
    (copy := tmp_path / "copy").mkdir()
    shutil.rmtree(repository.path)
    assert written_copy(checkouts.find(key), copy)

    assert written_files(copy) == written_files(first)
    assert (copy / "lines.dos").read_bytes() == b"one\r\ntwo\r\n"
    # These two trust the times and inodes of the index; `git status` would correct it.
    assert git_exit_code(copy, "diff-files", "--quiet") == 0
    assert git_exit_code(copy, "diff-index", "--quiet", "HEAD") == 0
    assert git_exit_code(copy, "fsck", "--strict") == 0
    (copy / "below" / "run.sh").write_bytes(b"\0\xfe")
    assert git_exit_code(copy, "diff-files", "--quiet") == 1


async def test_each_copy_is_of_the_same_bytes_even_if_others_are_changed(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "harbour")
    request = job_request(
        repo_url=repository.url, commit_sha=repository.commit({"a": "ahoy\n"}), trusted=True
    )
    first, key, checkouts = (
        await checked_out(request, tmp_path),
        CommitKey.of(request, POLICY),
        SmallCheckouts(LIMIT),
    )
    checkouts.keep(key, first)
    for number in range(2):
        (copy := tmp_path / f"copy-{number}").mkdir()
        assert written_copy(checkouts.find(key), copy)
        assert (copy / "a").read_text() == "ahoy\n"
        for place in (first, copy):
            for path in (each for each in place.rglob("*") if each.is_file()):
                path.chmod(0o600)
                path.write_bytes(b"poison")
        checkouts.keep(key, first)


async def test_a_checkout_is_for_the_same_trust_and_credential_alone(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "harbour")
    request = job_request(
        repo_url=repository.url, commit_sha=repository.commit({"a": "ahoy\n"}), trusted=True
    )
    key, checkouts = CommitKey.of(request, POLICY), SmallCheckouts(LIMIT)
    checkouts.keep(key, await checked_out(request, tmp_path))
    token = CredentialRule(repositories=("*",), access=TokenAccess(token="env:TOKEN"))
    for other in (
        key._replace(trusted=False),
        key._replace(credential=token),
        key._replace(credential=WithheldCredential("for trusted runs alone")),
        key._replace(repo_url=key.repo_url + "/"),
        key._replace(commit_sha="0" * 40),
    ):
        (empty := tmp_path / "empty").mkdir(exist_ok=True)
        assert not written_copy(checkouts.find(other), empty)
        assert list(empty.iterdir()) == []
    assert written_copy(checkouts.find(key), empty)


@pytest.mark.parametrize(
    "files",
    [
        {"large.bin": b"x" * MAX_CHECKOUT_BYTES},
        {f"{number}.txt": b"x" for number in range(MAX_ENTRIES)},
    ],
    ids=["bytes", "files"],
)
async def test_a_large_checkout_is_not_kept(tmp_path: Path, files: dict[str, bytes]) -> None:
    repository = Repository(tmp_path / "harbour")
    request = job_request(repo_url=repository.url, commit_sha=repository.commit(files), trusted=True)
    key, checkouts = CommitKey.of(request, POLICY), SmallCheckouts(LIMIT)
    checkouts.keep(key, await checked_out(request, tmp_path))
    assert not written_copy(checkouts.find(key), tmp_path / "copy")


async def test_the_checkouts_that_were_used_last_stay_below_the_limit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "harbour")
    checkouts = SmallCheckouts(16 * 100_000)
    keys = list[CommitKey]()
    for number in range(3):
        sha = repository.commit({"random.txt": os.urandom(10_000).hex()})
        request = job_request(repo_url=repository.url, commit_sha=sha, trusted=True)
        keys.append(CommitKey.of(request, POLICY))
        checkouts.keep(keys[-1], await checked_out(request, tmp_path, f"place-{number}"))
        if number:
            # Used again, so that the second one is the oldest.
            (copy := tmp_path / f"copy-{number}").mkdir()
            assert written_copy(checkouts.find(keys[0]), copy)
    (place := tmp_path / "last").mkdir()
    assert not written_copy(checkouts.find(keys[1]), place)
    assert written_copy(checkouts.find(keys[2]), place)


@pytest.mark.parametrize("spoil", ["version", "length", "no index"])
async def test_an_index_of_unknown_form_is_left_to_git(tmp_path: Path, spoil: str) -> None:
    repository = Repository(tmp_path / "harbour")
    request = job_request(
        repo_url=repository.url, commit_sha=repository.commit({"a": "ahoy\n"}), trusted=True
    )
    first, key, checkouts = (
        await checked_out(request, tmp_path),
        CommitKey.of(request, POLICY),
        SmallCheckouts(LIMIT),
    )
    index = first / ".git" / "index"
    match spoil:
        case "version":
            assert git_exit_code(first, "update-index", "--index-version", "4") == 0
        case "length":
            index.write_bytes(index.read_bytes()[:70])
        case _:
            index.unlink()
    checkouts.keep(key, first)
    assert not written_copy(checkouts.find(key), tmp_path / "copy")


async def test_jobs_of_one_commit_run_after_its_repository_and_the_cache_on_disk_are_gone(
    harness: ExecutorHarness,
) -> None:
    replace_checkout(harness, small_checkouts=SmallCheckouts(LIMIT))
    assert (await harness.run("cat hello.txt; git diff-index --quiet HEAD")).state is JobState.SUCCEEDED
    shutil.rmtree(harness.repository.path)
    assert (await harness.run("cat hello.txt; rm -rf ../../git .git *")).state is JobState.SUCCEEDED
    assert (await harness.run("cat hello.txt; git diff-index --quiet HEAD")).state is JobState.SUCCEEDED
    assert harness.text.count("hello from the commit") == 3
    replace_checkout(harness, small_checkouts=SmallCheckouts(0))
    assert (await harness.run("true")).reason is Reason.COMMIT_NOT_FOUND
