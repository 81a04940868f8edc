"""How pushes of a real repository descend: forced ones, merges, recreated branches."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.git import commit_ancestry
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.commit_ancestry import ask_repository
from solstice_orchestrator.superseding.push_order import CommitAncestry, OrderQuestion, PushOrder, answer
from tests.builders import job_request
from tests.repositories import Repository, emptied
from tests.servers.git_servers import git_backend, http_server, plain_files

POLICY = GitPolicy(protocols=("file", "http"), environment={"PATH": os.environ["PATH"]})
SPRING = "refs/heads/spring"
CONTENTS = itertools.count()


@pytest.fixture(params=[True, False], ids=["filters", "sends all"])
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    """With a commit on main, and the branch spring checked out."""
    made = Repository(tmp_path / "harbour")
    made.git("config", "uploadpack.allowFilter", str(request.param).lower())
    made.commit({"a": "1"})
    made.git("checkout", "--quiet", "-b", "spring")
    return made


async def order_by_history(
    repository: Repository, late: str, newest: str, tmp_path: Path, before: str | None = None, **changes: Any
) -> tuple[CommitAncestry, PushOrder | None]:
    question = OrderQuestion(commit_sha=late, before_sha=before, newest_sha=newest)
    request = job_request(**{"repo_url": repository.url, "commit_sha": late, "ref": SPRING, **changes})
    history = await ask_repository(request, question, policy=POLICY, scratch=tmp_path / "scratch")
    await emptied(tmp_path / "scratch")
    return history, answer(question, history)


def commits(repository: Repository, count: int) -> list[str]:
    """The ids of new, different commits, each on top of the previous one."""
    return [repository.commit({"a": str(next(CONTENTS))}) for _ in range(count)]


async def test_a_late_push_is_older_than_what_the_branch_points_at(
    repository: Repository, tmp_path: Path
) -> None:
    late, newest = commits(repository, 2)
    assert await order_by_history(repository, late, newest, tmp_path) == (
        CommitAncestry(now=newest),
        PushOrder.OLDER,
    )
    assert await order_by_history(repository, newest, late, tmp_path) == (
        CommitAncestry(now=newest),
        PushOrder.NEWER,
    )


async def test_of_two_pushes_that_the_branch_left_behind_the_history_decides(
    repository: Repository, tmp_path: Path
) -> None:
    late, newest, now = commits(repository, 3)
    assert await order_by_history(repository, late, newest, tmp_path) == (
        CommitAncestry(now=now, in_newest=True),
        PushOrder.OLDER,
    )
    assert await order_by_history(repository, newest, late, tmp_path) == (
        CommitAncestry(now=now, has_newest=True),
        PushOrder.NEWER,
    )


async def test_a_forced_push_is_newer_than_what_it_left_behind(
    repository: Repository, tmp_path: Path
) -> None:
    (abandoned,) = commits(repository, 1)
    repository.git("reset", "--quiet", "--hard", "main")
    (forced,) = commits(repository, 1)
    assert (await order_by_history(repository, abandoned, forced, tmp_path))[1] is PushOrder.OLDER
    assert (await order_by_history(repository, forced, abandoned, tmp_path))[1] is PushOrder.NEWER


async def test_a_branch_put_back_is_at_its_newest_push(repository: Repository, tmp_path: Path) -> None:
    first, _, third = commits(repository, 3)
    repository.git("reset", "--quiet", "--hard", first)
    assert (await order_by_history(repository, first, third, tmp_path, before=third))[1] is PushOrder.NEWER


async def test_one_that_was_put_back_and_went_on_is_left_open(repository: Repository, tmp_path: Path) -> None:
    first, second, third = commits(repository, 3)
    repository.git("branch", "keep", third)
    repository.git("reset", "--quiet", "--hard", first)
    (now,) = commits(repository, 1)
    history, order = await order_by_history(repository, first, second, tmp_path, before=third)
    assert history == CommitAncestry(now=now, in_newest=True, goes_back=True)
    assert order is None


async def test_a_merge_holds_both_sides(repository: Repository, tmp_path: Path) -> None:
    (one,) = commits(repository, 1)
    repository.git("checkout", "--quiet", "main")
    other = repository.commit({"b": "2"})
    repository.git("checkout", "--quiet", "spring")
    repository.git("merge", "--quiet", "--no-edit", "main")
    merged = repository.git("rev-parse", "HEAD")
    (now,) = commits(repository, 1)
    for late in (one, other):
        assert await order_by_history(repository, late, merged, tmp_path) == (
            CommitAncestry(now=now, in_newest=True),
            PushOrder.OLDER,
        )


async def test_a_branch_that_is_gone_has_a_history_where_its_commits_still_are(
    repository: Repository, tmp_path: Path
) -> None:
    late, newest = commits(repository, 2)
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--ff-only", "spring")
    repository.git("branch", "--quiet", "--delete", "spring")
    assert await order_by_history(repository, late, newest, tmp_path) == (
        CommitAncestry(now=None, in_newest=True),
        PushOrder.OLDER,
    )


async def test_a_branch_made_again_is_at_its_newest_push(repository: Repository, tmp_path: Path) -> None:
    first, second = commits(repository, 2)
    repository.git("checkout", "--quiet", "main")
    repository.git("branch", "--quiet", "--delete", "--force", "spring")
    repository.git("branch", "spring", first)
    assert (await order_by_history(repository, first, second, tmp_path))[1] is PushOrder.NEWER
    assert (await order_by_history(repository, second, first, tmp_path))[1] is PushOrder.OLDER


async def test_what_was_there_before_may_be_gone_for_good(repository: Repository, tmp_path: Path) -> None:
    late, newest, now = commits(repository, 3)
    assert await order_by_history(repository, late, newest, tmp_path, before="9" * 40) == (
        CommitAncestry(now=now, in_newest=True),
        PushOrder.OLDER,
    )


async def test_commits_that_are_nowhere_leave_it_open(repository: Repository, tmp_path: Path) -> None:
    (now,) = commits(repository, 1)
    assert await order_by_history(repository, "8" * 40, "9" * 40, tmp_path) == (CommitAncestry(now=now), None)


async def test_beyond_the_limit_nothing_is_known(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        commit_ancestry,
        "_COMMITS_ONLY",
        tuple("--depth=2" if each.startswith("--depth") else each for each in commit_ancestry._COMMITS_ONLY),
    )
    late, _, _, newest, _ = commits(repository, 5)
    assert (await order_by_history(repository, late, newest, tmp_path))[1] is None


@pytest.mark.parametrize("ref", ["refs/heads/spring --upload-pack=x", "-x", None, "refs/heads/a..b"])
async def test_a_ref_that_is_none_is_not_asked_for(
    repository: Repository, tmp_path: Path, ref: str | None
) -> None:
    late, newest = commits(repository, 2)
    history, order = await order_by_history(repository, late, newest, tmp_path, ref=ref)
    assert (history.now, order) == (None, PushOrder.OLDER)


@pytest.mark.parametrize("handler", [git_backend, plain_files], ids=["smart", "dumb"])
async def test_over_http(repository: Repository, tmp_path: Path, handler: Callable[[Path], Any]) -> None:
    late, newest, now = commits(repository, 3)
    repository.git("update-server-info")
    with http_server(handler(tmp_path)) as port:
        url = f"http://127.0.0.1:{port}/harbour/.git"
        history, order = await order_by_history(repository, late, newest, tmp_path, repo_url=url)
        assert history.now == now
        # A server of plain files gives no part of a history, so the order stays unknown.
        assert order is (PushOrder.OLDER if handler is git_backend else None)
        assert (await order_by_history(repository, late, now, tmp_path, repo_url=url))[1] is PushOrder.OLDER


@pytest.mark.parametrize(
    "url", ["ssh://forge.example/lantern/harbour.git", "file:///nowhere/at/all"], ids=["protocol", "path"]
)
async def test_what_cannot_be_asked_is_an_error(repository: Repository, tmp_path: Path, url: str) -> None:
    with pytest.raises(CheckoutFailed):
        await order_by_history(repository, "8" * 40, "9" * 40, tmp_path, repo_url=url)
