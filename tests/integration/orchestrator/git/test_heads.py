"""The heads of branches from a real git server, within the rules for strangers' URLs."""

from pathlib import Path

import pytest

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.heads import Branch, head_of
from tests.repositories import Repository, emptied

FILES = GitPolicy(protocols=("file",))


async def head(
    repository: Repository | str, ref: str, tmp_path: Path, policy: GitPolicy = FILES
) -> str | None:
    url = repository if isinstance(repository, str) else repository.url
    return await head_of(Branch(repo_url=url, ref=ref), policy=policy, scratch=tmp_path / "scratch")


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
async def test_it_is_what_was_pushed_last(tmp_path: Path, object_format: str) -> None:
    repository = Repository(tmp_path / "app", object_format=object_format)
    first = repository.commit({"a": "1"})
    assert await head(repository, "refs/heads/main", tmp_path) == first
    second = repository.commit({"a": "2"})
    assert await head(repository, "refs/heads/main", tmp_path) == second
    await emptied(tmp_path / "scratch")


async def test_a_ref_is_meant_by_its_whole_name(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    main = repository.commit({"a": "1"})
    repository.git("update-ref", "refs/remotes/origin/refs/heads/main", main)
    repository.git("branch", "nested/refs/heads/fog")
    assert await head(repository, "refs/heads/fog", tmp_path) is None
    assert await head(repository, "refs/heads/gone", tmp_path) is None
    for odd in ("refs/heads/*", "--upload-pack=touch", "refs/heads/../main", "HEAD"):
        assert await head(repository, odd, tmp_path) is None


async def test_of_an_annotated_tag_it_is_the_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "app")
    commit = repository.commit({"a": "1"})
    repository.git("tag", "--annotate", "--message", "one", "v1")
    assert repository.git("rev-parse", "v1") != commit
    assert await head(repository, "refs/tags/v1", tmp_path) == commit


async def test_what_is_not_there_and_what_is_not_allowed_are_distinguished_from_what_is_away(
    tmp_path: Path,
) -> None:
    cases = {
        f"file://{tmp_path}/nothing": Reason.COMMIT_NOT_FOUND,
        "https://forge.example/app.git": Reason.COMMIT_NOT_FOUND,
    }
    for url, reason in cases.items():
        with pytest.raises(CheckoutFailed) as failed:
            await head(url, "refs/heads/main", tmp_path)
        assert failed.value.reason is reason
    with pytest.raises(CheckoutFailed) as away:
        await head("http://127.0.0.1:9/app.git", "refs/heads/main", tmp_path, GitPolicy(protocols=("http",)))
    assert away.value.reason is Reason.CHECKOUT_FAILED


async def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    policy = GitPolicy(protocols=("file",), planning_timeout_seconds=0.001)
    repository = Repository(tmp_path / "app")
    repository.commit({"a": "1"})
    with pytest.raises(CheckoutFailed, match="took longer than"):
        await head(repository, "refs/heads/main", tmp_path, policy)
