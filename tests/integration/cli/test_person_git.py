"""The git that commands run in a person's repository gets no secrets of its environment."""

from pathlib import Path

import pytest

from solstice_cli.demo.stop_actions import make_repository
from tests.recorded_git import recorded_git
from tests.servers.forks import run_command
from tests.servers.service_process import base_environment
from tests.servers.solstice_up import Repository, repository

PLANTED = "planted-heron"
WORKFLOW = {".solstice/workflow.kdl": 'job "a" { step run="true" }'}
NAMES = ("AMQP_URL", "amqp_url", "DATABASE_URL", "SIGNING_KEYS", "SOLSTICE_TOKEN", "GITHUB_WEBHOOK_SECRET")
OTHERS = ("SOLSTICE_WEBHOOK_SECRET", "HARBOUR_TOKEN", "GIT_TOKEN", "HTTPS_PROXY")
SECRETS = dict.fromkeys((*NAMES, *OTHERS), f"amqp://joe:{PLANTED}@127.0.0.1:9/")
OF_GIT = {"HOME": "/home/ada", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "c"}


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    return repository(tmp_path / "anvil", WORKFLOW)


def assert_given(recorded: Path) -> None:
    """git ran, with what it needs, and without any secret."""
    lines = recorded.read_text().splitlines()
    assert {f"{name}={value}" for name, value in OF_GIT.items()} <= set(lines)
    assert [line for line in lines if PLANTED in line] == []


@pytest.mark.parametrize("command", [("enqueue",), ("webhook", "send")], ids=" ".join)
def test_git_of_a_command_gets_no_secrets(
    project: Repository, tmp_path: Path, command: tuple[str, ...]
) -> None:
    environment = {
        **base_environment(),
        **SECRETS,
        **OF_GIT,
        "SOLSTICE_HOME": str(tmp_path),
        "ENQUEUE_CONNECT_SECONDS": "0.1",
        "PATH": recorded_git(tmp_path),
    }
    done = run_command("solstice", *command, env=environment, cwd=project.folder)
    assert done.returncode, done.stdout  # neither a broker nor forge-integration is there
    assert_given(tmp_path / "of-git")


async def test_git_of_the_demo_gets_no_secrets(
    project: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = project.head  # the tests' own git
    for name, value in {**SECRETS, **OF_GIT, "PATH": recorded_git(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    change = await make_repository(project.folder, tmp_path / "demo" / "solstice.git")
    assert change.commit_sha == head
    assert_given(tmp_path / "of-git")
