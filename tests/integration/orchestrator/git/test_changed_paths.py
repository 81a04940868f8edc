"""What pushes and change requests of a real repository changed."""

import os
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.objects.changed_paths import changed_paths
from solstice_orchestrator.workflow.conditions.facts import ChangedPaths
from tests.builders import job_request
from tests.repositories import Repository, emptied

POLICY = GitPolicy(protocols=("file",), environment={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("filters", [True, False], ids=["filters", "sends all"])
async def test_what_a_push_and_a_change_request_changed(tmp_path: Path, *, filters: bool) -> None:
    repository = Repository(tmp_path / "harbour")
    repository.git("config", "uploadpack.allowFilter", str(filters).lower())
    first = repository.commit({"docs/a.md": "1", "src/a": "1"})
    repository.git("checkout", "--quiet", "-b", "spring")
    repository.commit({"src/\u00e4 b": "2"})
    head = repository.commit({"docs/a.md": "2"})
    repository.git("checkout", "--quiet", "main")
    main = repository.commit({"src/a": "3"})

    async def changed(commit_sha: str, **fields: Any) -> ChangedPaths:
        request = job_request(repo_url=repository.url, commit_sha=commit_sha, **fields)
        found = await changed_paths(request, policy=POLICY, scratch=tmp_path / "scratch")
        await emptied(tmp_path / "scratch")
        return found

    assert await changed(main, before_sha=first) == ChangedPaths(paths={"src/a"})
    # What the branch changed, and not what main changed meanwhile.
    assert await changed(head, change_number=7, target_branch="main") == ChangedPaths(
        paths={"src/\u00e4 b", "docs/a.md"}
    )
    assert "new ref" in (await changed(head)).unknown
    assert "did not say" in (await changed(head, before_sha="1" * 40)).unknown
    assert "did not say" in (await changed(head, change_number=7, target_branch="autumn")).unknown
