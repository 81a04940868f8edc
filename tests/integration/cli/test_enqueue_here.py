"""`solstice enqueue` in a repository's folder: HEAD, its branch, short ids, and mistakes."""

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from solstice_common.cli.local_repository import check_ref, commit_of, remote_url
from solstice_common.errors import ConfigurationError
from tests.servers.forks import run_command
from tests.servers.service_process import base_environment
from tests.servers.solstice_up import Repository, repository


def enqueue(folder: Path, *words: str, check: int = 0, **settings: str) -> "subprocess.CompletedProcess[str]":
    home = str(folder.parent / "home")
    environment = {**base_environment(), "SOLSTICE_HOME": home, "NO_COLOR": "1", **settings}
    done = run_command("solstice", "enqueue", *words, env=environment, cwd=folder)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


def requests(folder: Path) -> list[dict[str, Any]]:
    """The requests in the embedded broker's file."""
    with sqlite3.connect(folder.parent / "home" / "broker.sqlite") as broker:
        tables = [name for (name,) in broker.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in broker.execute(f"SELECT * FROM {table}")]  # noqa: S608
    bodies = [value for row in rows for value in row if isinstance(value, bytes) and value.startswith(b"{")]
    found = [json.loads(body) for body in bodies]
    return [each for each in found if "commit_sha" in each]


def made(tmp_path: Path) -> Repository:
    (tmp_path / "home").mkdir()
    return repository(tmp_path / "anvil", {"a": "1"})


def test_without_arguments_it_is_the_head_with_its_branch(tmp_path: Path) -> None:
    project = made(tmp_path)
    home = tmp_path / "home"
    assert enqueue(project.folder).stderr == (
        f"stored in {home}/broker.sqlite: no 'solstice up' is ready there; start one to build it\n"
    )
    (request,) = requests(project.folder)
    assert (request["commit_sha"], request["ref"]) == (project.head, "refs/heads/main")
    assert request["repo_url"] == project.folder.as_uri()


def test_a_short_id_is_resolved_and_a_change_that_is_not_committed_is_reported(tmp_path: Path) -> None:
    project = made(tmp_path)
    (project.folder / "a").write_text("2")
    done = enqueue(project.folder, "--commit-sha", project.head[:8], "--json")
    assert done.stderr == "warning: there are changes that are not committed: they are not built\n"
    (request,) = requests(project.folder)
    assert request["commit_sha"] == project.head


def test_untracked_files_are_counted_beside_changes_that_are_not_committed(tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {"a": "1", ".gitignore": "*.log"})
    (tmp_path / "home").mkdir()
    for name in ("new", "folder/newer", "ignored.log"):
        (project.folder / name).parent.mkdir(exist_ok=True)
        (project.folder / name).write_text("3")
    assert not commit_of(project.folder, None).dirty
    (project.folder / "a").write_text("2")
    done = enqueue(project.folder / "folder", "--json", SOLSTICE_HOME=str(tmp_path / "home"))
    assert done.stderr == (
        "warning: there are changes that are not committed, and 2 files that git does not track: they are not built\n"
    )


@pytest.mark.parametrize(
    "ref",
    [
        "main",
        "v1",
        "feature/otter",
        "refs/heads/main",
        "refs/tags/v1",
        "refs/pull/3/head",
        "far",
        "refs/heads/far",
    ],
)
def test_a_branch_or_tag_of_the_folder_and_of_its_remotes_is_found(tmp_path: Path, ref: str) -> None:
    project = made(tmp_path)
    project.git("tag", "v1")
    project.git("branch", "feature/otter")
    project.git("update-ref", "refs/pull/3/head", "HEAD")
    project.git("remote", "add", "origin", "https://forge.example/river/otter.git")
    project.git("update-ref", "refs/remotes/origin/far", "HEAD")
    check_ref(commit_of(project.folder, None), ref)


@pytest.mark.parametrize(
    "ref", ["nobranch", "refs/heads/nobranch", "feature", "HEAD", "-q", "", "main^{commit}"]
)
def test_a_ref_that_the_folder_does_not_have_is_refused(tmp_path: Path, ref: str) -> None:
    project = made(tmp_path)
    project.git("branch", "feature/otter")
    with pytest.raises(ConfigurationError, match="has no such branch or tag"):
        check_ref(commit_of(project.folder, None), ref)


@pytest.mark.parametrize("flag", ["--repo-url", "--commit-sha"])
def test_an_empty_value_does_not_mean_what_is_here(tmp_path: Path, flag: str) -> None:
    assert enqueue(made(tmp_path).folder, f"{flag}=", check=2).stderr == f"error: {flag} must not be empty\n"


def test_a_ref_that_the_folder_does_not_have_is_never_published(tmp_path: Path) -> None:
    project = made(tmp_path)
    assert enqueue(project.folder, "--ref", "nobranch", check=2).stderr == (
        f"error: --ref 'nobranch': {project.folder} has no such branch or tag; "
        "'git branch' and 'git tag' list those there are\n"
    )
    assert not (tmp_path / "home" / "broker.sqlite").exists()


def test_a_ref_of_a_repository_elsewhere_cannot_be_known(tmp_path: Path) -> None:
    project = made(tmp_path)
    url = "https://forge.example/river/otter.git"
    enqueue(project.folder, "--repo-url", url, "--commit-sha", "c" * 40, "--ref", "nobranch")
    (request,) = requests(project.folder)
    assert request["ref"] == "nobranch"


def test_a_folder_that_is_no_repository_is_refused_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert enqueue(folder, check=2).stderr.startswith(f"error: {folder} is no git repository: name")
    assert "neither a URL nor a folder" in enqueue(folder, "--repo-url", "nowhere", check=2).stderr
    assert "has no commit" in enqueue(made(tmp_path).folder, "--commit-sha", "dead", check=2).stderr


def test_a_folder_inside_the_repository_means_its_top_folder(tmp_path: Path) -> None:
    project = made(tmp_path)
    (project.folder / "deep" / "er").mkdir(parents=True)
    enqueue(project.folder / "deep" / "er", SOLSTICE_HOME=str(tmp_path / "home"))
    (request,) = requests(project.folder)
    assert request["repo_url"] == project.folder.as_uri()
    assert request["repo_full_name"] == f"{tmp_path.name}/anvil"


def test_what_git_takes_for_ssh_is_understood(tmp_path: Path) -> None:
    project = made(tmp_path)
    enqueue(project.folder, "--repo-url", "git@forge.example:river/otter.git", "--commit-sha", "c" * 40)
    (request,) = requests(project.folder)
    assert request["repo_url"] == "ssh://git@forge.example/river/otter.git"
    assert request["repo_full_name"] == "river/otter"


class TestForOrchestratorsElsewhere:
    """With a broker elsewhere, the repository must be one that other machines can fetch."""

    def pushed(self, tmp_path: Path, url: str) -> Repository:
        project = made(tmp_path)
        subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "origin.git")], check=True)
        project.git("remote", "add", "origin", str(tmp_path / "origin.git"))
        project.git("push", "--quiet", "origin", "main")
        project.git("remote", "set-url", "origin", url)
        return project

    @pytest.mark.parametrize(
        ("remote", "url"),
        [
            ("git@forge.example:river/otter.git", "ssh://git@forge.example/river/otter.git"),
            ("https://ada:token@forge.example/river/otter", "https://forge.example/river/otter"),
            ("../origin.git", None),
        ],
    )
    def test_it_is_the_remote_that_holds_the_commit(
        self, tmp_path: Path, remote: str, url: str | None
    ) -> None:
        project = self.pushed(tmp_path, remote)
        assert remote_url(commit_of(project.folder, None)) == url

    def test_a_commit_that_was_not_pushed_is_refused_and_the_way_round_is_named(self, tmp_path: Path) -> None:
        project = self.pushed(tmp_path, "https://forge.example/river/otter")
        sha = project.commit({"a": "2"})
        reported = enqueue(project.folder, check=2, AMQP_URL="amqp://127.0.0.1:9/%2f").stderr
        assert (
            "is on no branch of the remote 'origin' (https://forge.example/river/otter): push it" in reported
        )
        assert f"--repo-url https://forge.example/river/otter --commit-sha {sha}" in reported
        enqueue(project.folder)  # the embedded broker's orchestrators read this folder
        (request,) = requests(project.folder)
        assert (request["repo_url"], request["commit_sha"]) == (project.folder.as_uri(), sha)

    def test_a_repository_without_a_remote_is_its_folder(self, tmp_path: Path) -> None:
        assert remote_url(commit_of(made(tmp_path).folder, None)) is None
