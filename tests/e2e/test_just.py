"""`./just` and `.ci/run` work on a machine that has only Python and git."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = {
    "demo",
    "demo-containers",
    "up",
    "solstice",
    "test",
    "check",
    "fmt",
    "bench",
    "mutate",
    "soak",
    "docs",
    "install",
    "wheel",
    "images",
    "stack",
    "lock",
    "clean",
}


def run(
    *command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


PIP = """#!/bin/sh
case "$1 $2 $3" in
    "-c "*) echo True "$0" ;;
    "-m pip --version") ;;
    "-m pip install")
        while [ "$1" != --target ]; do shift; done
        cp -R "{tools}" "$2"
        rm -f "$2/installed" "$2/python" ;;
esac
"""
"""A Python whose pip takes the packages from this checkout's own tools: the tests need no network for it."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, in a folder with a space in its name."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("just", "Justfile", "requirements-tools.txt"):
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def with_pip(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home, and a Python whose pip works without a network."""
    assert run(ROOT / "just", "--version").returncode == 0, "this checkout's own tools"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text(PIP.format(tools=ROOT / ".tools"))
    (tools / "python3").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": f"{tools}:/usr/bin:/bin"}


@pytest.mark.parametrize("script", ["just", ".ci/run"])
def test_scripts_may_be_run(script: str) -> None:
    assert (ROOT / script).stat().st_mode & stat.S_IXUSR


def test_just_is_a_posix_shell_script() -> None:
    assert (ROOT / "just").read_text().startswith("#!/bin/sh\n")
    for shell in ("sh", "dash", "bash --posix"):
        if shutil.which(shell.split()[0]):
            assert run(*shell.split(), "-n", ROOT / "just").stderr == ""


def test_ci_runs_check_and_test() -> None:
    assert run("bash", "-n", ROOT / ".ci/run").stderr == ""
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in lines if line.startswith("./just")] == ["./just check", "./just test"]


def test_first_call_installs_and_the_second_is_silent(
    checkout: Path, with_pip: dict[str, str], tmp_path: Path
) -> None:
    # Given a relative path, from another folder.
    script = Path(os.path.relpath(checkout / "just", tmp_path))
    first = run(script, cwd=tmp_path, env=with_pip)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("\n") == 1
    assert "installing uv and just" in first.stderr
    assert set(re.findall(r"^    ([\w-]+)", first.stdout, re.MULTILINE)) == RECIPES
    second = run(script, "--summary", cwd=tmp_path, env=with_pip)
    assert (second.returncode, second.stderr) == (0, "")
    assert set(second.stdout.split()) == RECIPES


def test_other_versions_are_installed_when_the_pins_change(checkout: Path, with_pip: dict[str, str]) -> None:
    assert "installing" in run(checkout / "just", env=with_pip).stderr
    with (checkout / "requirements-tools.txt").open("a") as pins:
        pins.write("# another day\n")
    assert "installing" in run(checkout / "just", env=with_pip).stderr
    assert run(checkout / "just", env=with_pip).stderr == ""


def test_recipes_are_listed_in_groups() -> None:
    listed = run(ROOT / "just").stdout
    assert re.findall(r"^    \[(.+)\]$", listed, re.MULTILINE) == ["try it", "work on it", "set up"]
    undocumented = [line for line in re.findall(r"^    (\w.*)$", listed, re.MULTILINE) if "# " not in line]
    assert undocumented == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "no python3 on PATH"),
        ("echo False /usr/bin/python3", "older than Python 3.11"),
        ('case "$1" in -c) echo True "$0" ;; *) exit 1 ;; esac', "apt-get install python3-pip"),
    ],
    ids=["no python", "too old", "without pip"],
)
def test_missing_python_is_reported_with_what_to_do(
    checkout: Path, tmp_path: Path, script: str, words: str
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    done = run(checkout / "just", env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode != 0
    assert words in done.stderr
    assert sorted(path.name for path in checkout.iterdir()) == ["Justfile", "just", "requirements-tools.txt"]


def test_install_that_fails_leaves_nothing_behind(
    checkout: Path, with_pip: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python3"
    python.write_text(python.read_text().replace("cp -R", "false && cp -R").replace("rm -f", "exit 1; rm -f"))
    done = run(checkout / "just", env=with_pip)
    assert done.returncode == 1
    assert "could not install uv and just" in done.stderr
    assert sorted(path.name for path in checkout.iterdir()) == ["Justfile", "just", "requirements-tools.txt"]
