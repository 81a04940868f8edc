"""Commands beside a running `solstice up` find what it uses by SOLSTICE_HOME."""

import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.forks import run_command
from tests.servers.ports import free_ports
from tests.servers.solstice_up import Repository, SolsticeUp, clean_environment, repository, solstice_up


def environment_without_settings(
    home: Path, program: str, *words: str, cwd: Path | None = None, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """A command in another terminal, where nothing but SOLSTICE_HOME is set."""
    return run_command(program, *words, env={**clean_environment(home), **settings}, cwd=cwd or home)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    """With every file in a place of its own, which no default names."""
    folder = tmp_path_factory.mktemp("beside")
    urls = [
        word
        for flag in ("amqp-url", "forge-inbox-url", "database-url")
        for word in (f"--{flag}", f"sqlite:///{folder / flag}.sqlite")
    ]
    with solstice_up(folder / "state", *urls) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    return repository(tmp_path / "anvil", {".solstice/workflow.kdl": 'job "a" { step "s" run="true"; }'})


def test_dead_statuses_are_those_of_its_broker(up: SolsticeUp) -> None:
    done = environment_without_settings(up.home, "forge-integration", "statuses", "dead")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no dead letters: every forge took its statuses\n"


def test_a_webhook_and_a_run_are_found_by_all_commands(up: SolsticeUp, project: Repository) -> None:
    sent = environment_without_settings(up.home, "solstice", "webhook", "send", cwd=project.folder)
    assert (sent.returncode, sent.stderr) == (0, "")
    listed = environment_without_settings(up.home, "forge-integration", "deliveries", "list", "--json")
    assert len(json.loads(listed.stdout)["deliveries"]) == 1
    built = environment_without_settings(up.home, "solstice", "enqueue", "--wait", cwd=project.folder)
    assert built.returncode == 0, built.stderr
    runs = json.loads(environment_without_settings(up.home, "solstice", "runs", "--json").stdout)["runs"]
    assert {run["source"] for run in runs} == {"forgejo", "manual"}
    named = {(run["repo_url"], run["repo_full_name"]) for run in runs}
    assert named == {(project.folder.as_uri(), f"{project.folder.parent.name}/anvil")}
    checked = environment_without_settings(up.home, "solstice", "store", "check", "--json")
    assert json.loads(checked.stdout)["counts"]["runs"] == 2


def test_a_variable_wins_over_it(up: SolsticeUp) -> None:
    (port,) = free_ports(1)
    done = environment_without_settings(up.home, "solstice", "runs", SOLSTICE_URL=f"http://127.0.0.1:{port}")
    assert done.returncode == 3
    assert f"no orchestrator answers at http://127.0.0.1:{port}" in done.stderr
    assert "This is the default" not in done.stderr


def test_only_its_owner_reads_the_file(up: SolsticeUp) -> None:
    assert stat.S_IMODE((up.home / "up.json").stat().st_mode) == 0o600


def test_what_a_killed_one_left_behind_is_not_believed(tmp_path: Path, project: Repository) -> None:
    home = tmp_path / "state"
    with solstice_up(home, "--amqp-url", f"sqlite:///{tmp_path / 'else.sqlite'}") as up:
        up.process.send_signal(signal.SIGKILL)
        up.process.wait()
        assert (home / "up.json").exists()
        done = environment_without_settings(home, "solstice", "enqueue", "--json", cwd=project.folder)
        assert done.returncode == 0, done.stderr
        assert (home / "broker.sqlite").exists()
        up.process.returncode = 0  # it is dead as asked


def test_nothing_is_left_after_an_orderly_end(tmp_path: Path) -> None:
    with solstice_up(tmp_path / "state"):
        assert (tmp_path / "state" / "up.json").exists()
    assert not (tmp_path / "state" / "up.json").exists()


def test_without_one_the_error_says_where_it_looked(tmp_path: Path) -> None:
    done = environment_without_settings(tmp_path, "solstice", "runs", SOLSTICE_HOME=str(tmp_path / "none"))
    if done.returncode == 0:
        pytest.fail("something of this machine answers at the default address")
    assert f"no 'solstice up' runs with the state directory {tmp_path / 'none'}" in done.stderr
    assert "--solstice-url (SOLSTICE_URL)" in done.stderr
