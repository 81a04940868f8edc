"""Each commit's files are fetched once, together with others of its repository."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git import commit_files
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_files import CommitFiles
from solstice_orchestrator.git.commit_group import (
    FilesOrFailure,
    FilesRequest,
    SingleFetch,
    fetch_group,
    fetch_single,
)
from tests.builders import job_request
from tests.repositories import Repository

POLICY = GitPolicy(protocols=("file",))
PATHS = ("workflow", "absent")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fetched commits, those of a group joined by spaces, the others marked by how."""
    seen: list[str] = []

    async def together(
        wants: Sequence[FilesRequest], **options: Any
    ) -> Sequence[FilesOrFailure | SingleFetch]:
        seen.append(" ".join(want.request.commit_sha for want in wants))
        return await fetch_group(wants, **options)

    async def apart(want: FilesRequest, how: SingleFetch, **options: Any) -> FilesOrFailure:
        seen.append(f"{how.name} {want.request.commit_sha}")
        return await fetch_single(want, how, **options)

    monkeypatch.setattr(commit_files, "fetch_group", together)
    monkeypatch.setattr(commit_files, "fetch_single", apart)
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
        assert fetches == ["1" * 40, f"BY_REF {'1' * 40}"]
        with pytest.raises(CheckoutFailed):
            await files.of(request, PATHS)
        assert len(fetches) == 4
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


async def test_large_files_are_fetched_again(
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


async def test_what_is_wanted_during_a_fetch_forms_the_next_one(
    repository: Repository, tmp_path: Path, fetches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_files, "MAX_GROUP", 3)
    other = Repository(tmp_path / "other")
    elsewhere = other.commit({"workflow": "elsewhere"})
    shas = [repository.commit({"workflow": str(number)}) for number in range(6)]
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")

        async def of(sha: str, url: str = repository.url) -> bytes:
            return (await files.of(job_request(repo_url=url, commit_sha=sha), PATHS))["workflow"]

        first = asyncio.ensure_future(of(shas[0]))
        while not fetches:  # noqa: ASYNC110  the next turns of the loop bring it there
            await asyncio.sleep(0)
        later = await asyncio.gather(*(of(sha) for sha in shas[1:]), of(elsewhere, other.url))
        assert [await first, *later] == [b"0", b"1", b"2", b"3", b"4", b"5", b"elsewhere"]
    assert fetches[0] == shas[0]
    assert fetches.count(elsewhere) == 1
    assert [group for group in fetches if " " in group] == [" ".join(shas[1:4]), " ".join(shas[4:6])]


async def test_a_commit_that_is_not_there_holds_up_no_other_and_fails_alone(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    shas = [repository.commit({"workflow": str(number)}) for number in range(2)]
    absent = "1" * 40
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        requests = [
            job_request(repo_url=repository.url, commit_sha=sha) for sha in (shas[0], absent, shas[1])
        ]
        answers = await asyncio.gather(
            *(files.of(request, PATHS) for request in requests), return_exceptions=True
        )
    assert [answers[0], answers[2]] == [{"workflow": b"0"}, {"workflow": b"1"}]
    assert isinstance(answers[1], CheckoutFailed)
    assert (answers[1].reason, answers[1].may_appear) == (Reason.COMMIT_NOT_FOUND, True)
    assert fetches == [" ".join((shas[0], absent, shas[1])), f"BY_REF {absent}"]


async def test_who_gives_up_waiting_in_a_group_leaves_the_others_theirs(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    shas = [repository.commit({"workflow": str(number)}) for number in range(2)]
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        requests = [job_request(repo_url=repository.url, commit_sha=sha) for sha in shas]
        first, second = (asyncio.ensure_future(files.of(request, PATHS)) for request in requests)
        while not fetches:  # noqa: ASYNC110  the next turns of the loop bring it there
            await asyncio.sleep(0)
        first.cancel()
        assert await second == {"workflow": b"1"}
        assert await files.of(requests[0], PATHS) == {"workflow": b"0"}
    assert first.cancelled()
    assert fetches == [" ".join(shas)]


async def test_the_end_of_a_fetch_reaches_all_its_waiters(
    repository: Repository, tmp_path: Path, fetches: list[str]
) -> None:
    sha = repository.commit({"workflow": "x"})
    waiting: list[asyncio.Task[Any]] = []

    async def fetching() -> None:
        async with asyncio.TaskGroup() as tasks:
            files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
            waiting.append(
                asyncio.ensure_future(files.of(job_request(repo_url=repository.url, commit_sha=sha), PATHS))
            )
            await asyncio.Event().wait()

    under_way = asyncio.ensure_future(fetching())
    while not fetches:  # noqa: ASYNC110  the next turns of the loop bring it there
        await asyncio.sleep(0)
    under_way.cancel()
    await asyncio.wait([under_way, *waiting])
    assert [task.cancelled() for task in waiting] == [True]


async def test_a_mistake_of_ours_is_the_worlds_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise RuntimeError("the glass is broken")

    monkeypatch.setattr(commit_files, "fetch_group", broken)
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path)
        with pytest.raises(CheckoutFailed, match="the glass is broken") as caught:
            await files.of(job_request(), PATHS)
    assert caught.value.reason is Reason.CHECKOUT_FAILED


async def test_a_mistake_of_ours_in_a_group_is_no_failure_of_its_commits(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise RuntimeError("the glass is broken")

    monkeypatch.setattr(commit_files, "fetch_group", broken)
    requests = [
        job_request(repo_url=repository.url, commit_sha=repository.commit({"workflow": str(number)}))
        for number in range(2)
    ]
    async with asyncio.TaskGroup() as tasks:
        files = CommitFiles(tasks, POLICY, tmp_path / "scratch")
        answers = await asyncio.gather(*(files.of(request, PATHS) for request in requests))
    assert answers == [{"workflow": b"0"}, {"workflow": b"1"}]
