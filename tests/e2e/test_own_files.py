"""The files of `solstice up` are readable by their owner alone.

That is so also for files that an older version left open, and `up` follows no link to them.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from solstice_common.runtime.private_paths import OWNER_ONLY, OWNERS_DIRECTORY
from tests.servers.service_process import ServiceProcess, base_environment, service_process

START = "from solstice_cli.main import main; main()"
SECRETS = '{"forgejo": "one", "gitea": "two", "github": "three", "gitlab": "four"}'


def environment(home: Path, **settings: str) -> dict[str, str]:
    return {
        **base_environment(),
        "HOME": str(home),
        "FORGE_PORT": "0",
        "ORCHESTRATOR_PORT": "0",
        "LOG_FORMAT": "json",
        **settings,
    }


@contextmanager
def started(home: Path, **settings: str) -> Iterator[ServiceProcess]:
    """`solstice up` with this home, by a person whose umask lets all users read."""
    before = os.umask(0o022)
    try:
        with service_process(
            ServiceProcess,
            START,
            "up",
            environment=environment(home, **settings),
            started="orchestrator.started",
        ) as process:
            yield process
    finally:
        os.umask(before)


def modes(state: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in state.iterdir() if each.is_file()}


def wide_state(state: Path) -> None:
    """As an older version made it under a usual umask."""
    state.mkdir(parents=True, mode=0o755)
    state.chmod(0o755)
    for name, content in (("up.lock", ""), ("webhook-secrets.json", SECRETS), ("broker.sqlite", "")):
        (state / name).write_text(content)
        (state / name).chmod(0o644)


def test_the_first_state_directory_and_its_files_are_for_their_owner(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "solstice-ci"
    with started(tmp_path) as process:
        assert stat.S_IMODE(state.stat().st_mode) == OWNERS_DIRECTORY
        assert "up.lock" in modes(state)
        assert set(modes(state).values()) == {OWNER_ONLY}
        assert [event for event in process.events if str(event["event"]).startswith("file_mode.")] == []


def test_nothing_that_commands_write_is_for_others_under_any_umask(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        subprocess.run(
            [sys.executable, "-c", START, *words],
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            umask=0,
            timeout=60,
        )

    # The first makes the directories above the state directory, too.
    run("keys", "create", "first")
    run("token", "create", "second", "--scope", "read")
    run("topology", "declare")
    run("dlq", "export", str(tmp_path / "dead.jsonl"))
    run("store", "migrate")
    run("simulate", "record", "--out", str(tmp_path / "trace.jsonl"))
    found = {each: stat.S_IMODE(each.lstat().st_mode) for each in tmp_path.rglob("*")}
    state = tmp_path / ".local" / "state" / "solstice-ci"
    assert {state, state / "keys", tmp_path / "dead.jsonl", tmp_path / "trace.jsonl"} <= found.keys()
    assert {str(each): f"{mode:o}" for each, mode in found.items() if mode & 0o077} == {}


def test_what_an_older_version_left_wide_is_narrowed(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "solstice-ci"
    wide_state(state)
    with started(tmp_path) as process:
        assert stat.S_IMODE(state.stat().st_mode) == OWNERS_DIRECTORY
        assert set(modes(state).values()) == {OWNER_ONLY}
        assert (state / "webhook-secrets.json").read_text() == SECRETS
        reported = {
            event["path"]: event["before"]
            for event in process.events
            if event["event"] == "file_mode.narrowed"
        }
        assert reported[str(state)] == "0755"
        assert reported[str(state / "up.lock")] == reported[str(state / "webhook-secrets.json")] == "0644"


def test_a_directory_that_the_operator_named_is_unchanged_and_reported(tmp_path: Path) -> None:
    state = tmp_path / "srv"
    wide_state(state)
    with started(tmp_path, SOLSTICE_HOME=str(state)) as process:
        assert stat.S_IMODE(state.stat().st_mode) == 0o755
        assert set(modes(state).values()) == {OWNER_ONLY}
        assert f"chmod 700 {state}" in process.logged("file_mode.too_wide")["detail"]


@pytest.mark.parametrize("name", ["webhook-secrets.json", "up.lock"])
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
def test_a_planted_link_is_not_followed(tmp_path: Path, name: str, *, there: bool) -> None:
    target, state = tmp_path / "target", tmp_path / "state"
    state.mkdir(mode=0o700)
    if there:
        target.write_text(SECRETS)
    (state / name).symlink_to(target)
    done = subprocess.run(
        [sys.executable, "-c", START, "up"],
        env=environment(tmp_path, SOLSTICE_HOME=str(state)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert str(state / name) in done.stderr
    assert "symbolic link" in done.stderr
    assert "Traceback" not in done.stderr
    assert (target.read_text() if there else target.exists()) == (SECRETS if there else False)
    assert (state / name).is_symlink()
