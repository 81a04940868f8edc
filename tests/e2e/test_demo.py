"""`./just demo` succeeds on this checkout, or names the stop that failed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from solstice_cli.demo.stop_actions import WORKFLOW
from tests.servers.podman import podman_is_there
from tests.servers.solstice_up import Repository, clean_environment, repository

ROOT = Path(__file__).parents[2]
STOPS = 8


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "folder for temporary files"
    folder.mkdir()
    return {**clean_environment(tmp_path / "state"), "TMPDIR": str(folder)}


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    """A checkout whose workflow does next to nothing."""
    return repository(tmp_path / "a checkout", {WORKFLOW: 'job "hello" { step "say" run="echo hello"; }'})


def demo(
    environment: dict[str, str], *arguments: str | Path, seconds: float = 110
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "solstice_cli.demo.__main__", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def processes_below(folder: str) -> list[str]:
    """Command lines of processes that have this folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_newest_commit_of_this_checkout_is_built(environment: dict[str, str]) -> None:
    done = demo(environment, "--checkout", ROOT)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"^ (\d) ✓", done.stdout, re.MULTILINE) == [str(n + 1) for n in range(STOPS)]
    assert "lint │" in done.stdout, "the log is shown live"
    assert "was built" in done.stdout
    if Path("/proc/self/environ").exists():
        assert processes_below(environment["TMPDIR"]) == []


def test_what_it_shows_can_be_looked_at_afterwards(environment: dict[str, str], project: Repository) -> None:
    done = demo(environment, "--checkout", project.folder)
    (state,) = re.findall(r"SOLSTICE_HOME='?(.+?)'? \./just up", done.stdout)
    assert (Path(state) / "orchestrator.sqlite3").is_file()


def test_settings_of_real_services_are_left_alone(environment: dict[str, str], project: Repository) -> None:
    real = {"AMQP_URL": "amqp://rabbitmq.example:5672/", "FORGEJO_WEBHOOK_SECRET": "of the real one"}
    assert demo({**environment, **real}, "--checkout", project.folder).returncode == 0


@pytest.mark.parametrize(
    ("workflow", "stop"),
    [
        (
            'job "hello" { step "fail" run="exit 3"; }',
            "stop 5 failed: its jobs succeeded: the run ended as failed",
        ),
        ("job {", "stop 5 failed: its jobs succeeded: the run ended as errored"),
    ],
    ids=["job fails", "workflow wrong"],
)
def test_stop_that_failed_is_named(
    environment: dict[str, str], project: Repository, workflow: str, stop: str
) -> None:
    project.commit({WORKFLOW: workflow})
    done = demo(environment, "--checkout", project.folder)
    assert done.returncode == 1
    assert stop in done.stdout


def test_late_jobs_are_reported_with_what_they_wait_for(
    environment: dict[str, str], project: Repository
) -> None:
    project.commit({WORKFLOW: 'job "hello" runs-on="nowhere" { step "say" run="echo hello"; }'})
    done = demo(environment, "--checkout", project.folder, "--patience", "2")
    assert done.returncode == 1
    assert "stop 5 failed: its jobs succeeded: not within 2 s: hello waits: " in done.stdout
    assert "nowhere" in done.stdout


CONTAINER_STOPS = STOPS + 2


@pytest.mark.timeout(300)
def test_a_project_is_built_in_containers_with_a_matrix_and_a_service(environment: dict[str, str]) -> None:
    # On Debian as root podman is installed, so that CI runs this.
    if not podman_is_there():
        pytest.skip("not asked for: this is not root on Debian with the right to mount")
    # Ten seconds on a quiet machine, and a minute beside other tests.
    done = demo(environment, "--containers", "--patience", "200", seconds=280)
    assert done.returncode == 0, done.stdout
    stops = re.findall(r"^ *(\d+) ✓", done.stdout, re.MULTILINE)
    assert stops == [str(n + 1) for n in range(CONTAINER_STOPS)]
    for language in ("en", "de", "ja"):
        assert re.search(
            rf"test-{language} │ .*service store: localhost/guestbook/store:1 sha256:", done.stdout
        )
    # Each job has a store of its own, which its test and its two signatures fill.
    assert (
        re.findall(r"test-ja │ +(おはようございます)$", done.stdout, re.MULTILINE)
        == ["おはようございます"] * 5
    )
    (folder,) = Path(environment["TMPDIR"]).glob("solstice-demo-*")
    assert not (folder / "podman" / "graph").exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_a_machine_without_podman_is_told_how_to_get_it(environment: dict[str, str]) -> None:
    done = demo({**environment, "PATH": "/nowhere"}, "--containers")
    assert done.returncode == 1
    assert "stop 1 failed: podman is there: podman, or runc, is missing here; on Debian" in done.stdout
    assert "apt-get install podman runc" in done.stdout


def test_commit_without_a_workflow_is_reported(environment: dict[str, str], project: Repository) -> None:
    project.git("rm", "--quiet", WORKFLOW)
    project.commit({})
    done = demo(environment, "--checkout", project.folder)
    assert done.returncode == 1
    assert f"has no {WORKFLOW}: commit one" in done.stdout


def test_folder_without_a_repository_is_reported(environment: dict[str, str], tmp_path: Path) -> None:
    done = demo({**environment, "GIT_CEILING_DIRECTORIES": os.fspath(tmp_path)}, "--checkout", tmp_path)
    assert done.returncode == 1
    assert "stop 2 failed: a repository was made from this checkout" in done.stdout
