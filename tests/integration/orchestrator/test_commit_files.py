"""Each commit's files are fetched once, however many ask."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from solstice_common.messages import JobRequestV1
from solstice_orchestrator import commit_files
from solstice_orchestrator.checkout import fetch_files
from solstice_orchestrator.commit_files import CommitFiles
from solstice_orchestrator.git import CheckoutFailed, GitPolicy
from solstice_orchestrator.jobs import Reason

from tests.builders import job_request
from tests.repositories import Repository

POLICY = GitPolicy(protocols=("file",))
PATHS = ("workflow", "absent")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits that were really fetched."""
    seen: list[str] = []

    async def counted(
        request: JobRequestV1, paths: Sequence[str], *, policy: GitPolicy, scratch: Path
    ) -> object:
        seen.append(request.commit_sha)
        return await fetch_files(request, paths, policy=policy, scratch=scratch)

    monkeypatch.setattr(commit_files, "fetch_files", counted)
    return seen


async def test_many_who_ask_at_once_share_one_fetch(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    sha = repository.commit({"workflow": "x"})
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        requests = [job_request(repo_url=repository.url, commit_sha=sha) for _ in range(20)]
        answers = await asyncio.gather(*(files.of(request, PATHS) for request in requests))
    assert answers == [{"workflow": b"x"}] * 20
    assert fetches == [sha]


async def test_a_commit_is_remembered_also_when_its_repository_is_gone(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"workflow": "x"}))
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        await files.of(request, PATHS)
        shutil.rmtree(repository.path)
        assert await files.of(request, PATHS) == {"workflow": b"x"}
        with pytest.raises(CheckoutFailed):
            await files.of(request, ("other",))


async def test_a_failure_is_shared_and_not_remembered(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    request = job_request(repo_url=repository.url, commit_sha="1" * 40)
    repository.commit({"workflow": "x"})
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        answers = await asyncio.gather(*(files.of(request, PATHS) for _ in range(3)), return_exceptions=True)
        assert len(fetches) == 1
        with pytest.raises(CheckoutFailed):
            await files.of(request, PATHS)
        assert len(fetches) == 2
    assert [error.reason for error in answers if isinstance(error, CheckoutFailed)] == [
        Reason.COMMIT_NOT_FOUND
    ] * 3


async def test_who_gives_up_waiting_leaves_the_others_their_answer(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"workflow": "x"}))
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        first = asyncio.ensure_future(files.of(request, PATHS))
        second = asyncio.ensure_future(files.of(request, PATHS))
        while not fetches:  # noqa: ASYNC110  the next turns of the loop bring it there
            await asyncio.sleep(0)
        first.cancel()
        assert await second == {"workflow": b"x"}
    assert first.cancelled()


async def test_large_files_are_fetched_anew(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"workflow": "x" * 100_000}))
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        assert await files.of(request, PATHS) == await files.of(request, PATHS)
    assert len(fetches) == 2


async def test_the_commits_asked_for_longest_ago_are_forgotten(
    repository: Repository, tmp_path: Path, fetches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_files, "MAX_COMMITS", 2)
    first, second, third = (
        job_request(repo_url=repository.url, commit_sha=repository.commit({"workflow": str(n)}))
        for n in range(3)
    )
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        for request in (first, second, first, third, first, second):
            await files.of(request, PATHS)
    assert fetches == [request.commit_sha for request in (first, second, third, second)]


async def test_a_mistake_of_ours_is_the_worlds_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise RuntimeError("the glass is broken")

    monkeypatch.setattr(commit_files, "fetch_files", broken)
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path)
        with pytest.raises(CheckoutFailed, match="the glass is broken") as caught:
            await files.of(job_request(), PATHS)
    assert caught.value.reason is Reason.CHECKOUT_FAILED
