"""`solstice enqueue` in a folder: this repository's HEAD with its branch, short ids, and what is wrong said at once."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.servers.service_process import kept_environment
from tests.servers.solstice_up import Repository, repository


def enqueue(folder: Path, *words: str, check: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "solstice_cli", "enqueue", *words],
        env={**kept_environment(), "SOLSTICE_HOME": str(folder.parent / "home"), "NO_COLOR": "1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


def requests(folder: Path) -> list[dict[str, Any]]:
    """What stands in the embedded broker's file."""
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
    assert enqueue(project.folder).stderr == ""
    (request,) = requests(project.folder)
    assert (request["commit_sha"], request["ref"]) == (project.head, "refs/heads/main")
    assert request["repo_url"] == project.folder.as_uri()


def test_a_short_id_is_resolved_and_a_change_that_is_not_committed_is_said(tmp_path: Path) -> None:
    project = made(tmp_path)
    (project.folder / "a").write_text("2")
    done = enqueue(project.folder, "--commit-sha", project.head[:8])
    assert done.stderr == "warning: there are changes that are not committed: they are not built\n"
    (request,) = requests(project.folder)
    assert request["commit_sha"] == project.head


def test_a_folder_that_is_no_repository_is_refused_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert enqueue(folder, check=2).stderr.startswith(f"error: {folder} is no git repository: name")
    assert "neither a URL nor a folder" in enqueue(folder, "--repo-url", "nowhere", check=2).stderr
    assert "has no commit" in enqueue(made(tmp_path).folder, "--commit-sha", "dead", check=2).stderr
