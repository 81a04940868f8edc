"""What an orchestrator says at start about the git of its machine."""

import os
from pathlib import Path

import pytest

from tests.servers.orchestrator import SharedFiles, orchestrator


def events_of_daemon(folder: Path, path: str, **settings: str) -> list[dict[str, str]]:
    with orchestrator(SharedFiles(directory=folder), PATH=path, **settings) as process:
        return [event for event in process.events if event["event"] == "git.unsupported"]


@pytest.mark.parametrize(
    ("version", "private", "warned"),
    [("2.30.2", "false", True), ("2.30.2", "true", False), ("2.37.0", "false", False)],
)
def test_one_that_is_too_old_to_be_held_to_addresses(
    tmp_path: Path, version: str, private: str, warned: bool
) -> None:
    (program := tmp_path / "bin" / "git").parent.mkdir()
    program.write_text(f"#!/bin/sh\necho git version {version}\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    events = events_of_daemon(tmp_path, path, GIT_ALLOW_PRIVATE=private)
    assert [(event["level"], event["version"]) for event in events] == (
        [("warning", f"git version {version}")] if warned else []
    )


def test_none_at_all(tmp_path: Path) -> None:
    (event,) = events_of_daemon(tmp_path, str(tmp_path / "nowhere"))
    assert "No such file" in event["detail"]
