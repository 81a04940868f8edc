"""The wheel needs no checkout: installed into an empty environment, it builds a commit."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.servers.server import TLS
from tests.servers.solstice_up import clean_environment, repository, solstice_up

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "solstice_common": "common",
    "solstice_forge": "services/forge-integration",
    "solstice_orchestrator": "services/orchestrator",
    "solstice_cli": "services/cli",
}


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A wheel of this checkout, and an environment with it and its dependencies."""

    wheel: Path
    folder: Path
    home: Path

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=cwd or self.home,
            env=clean_environment(self.home / "state"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


def install(wheel: Path, tools: Path) -> None:
    """Run `uv tool install` with the pinned versions, whose hashes it compares.

    The packages are in uv's cache, since `./just install` brought them. What the index says of them may not be.
    """
    environment = {
        "UV_SYSTEM_CERTS": "1",
        "UV_LINK_MODE": "copy",
        **os.environ,
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_TOOL_DIR": str(tools),
        "UV_TOOL_BIN_DIR": str(tools / "bin"),
    }
    command = (str(ROOT / ".tools/bin/uv"), "tool", "install", "--python", sys.executable)
    pinned = ("--constraints", str(ROOT / "requirements.txt"), str(wheel))
    for where in (("--offline",), ()):
        done = subprocess.run(
            [*command, *where, *pinned],
            cwd=wheel.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
    raise AssertionError(done.stderr)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [ROOT / "just", "wheel", "--directory", folder], check=True, capture_output=True, timeout=100
    )
    (wheel,) = folder.glob("*.whl")
    install(wheel, folder / "tools")
    home = folder / "home"
    home.mkdir()
    return Installed(wheel=wheel, folder=folder / "tools" / "solstice-ci", home=home)


def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed) -> None:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *(f"{place}/{name}" for name, place in PACKAGES.items())],
        capture_output=True,
        text=True,
        check=True,
    )
    places = tuple(f"{place}/" for place in PACKAGES.values())
    ours = {
        next(file.removeprefix(p) for p in places if file.startswith(p)) for file in listed.stdout.split()
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert ours
    assert packed == ours


def test_its_programs_come_from_the_environment_alone(installed: Installed) -> None:
    code = (
        "import json; from importlib.metadata import distribution; from importlib import import_module as get;"
        "programs = distribution('solstice-ci').entry_points;"
        f"files = [get(name).__file__ for name in {[*PACKAGES]}];"
        "print(json.dumps({'programs': [each.name for each in programs if each.load()], 'files': files}))"
    )
    answer = json.loads(installed.run("python", "-c", code))
    assert {*answer["programs"]} == {"solstice", "forge-integration", "orchestrator"}
    assert [file for file in answer["files"] if not Path(file).is_relative_to(installed.folder)] == []
    assert all((installed.folder / "bin" / name).exists() for name in answer["programs"])


def test_it_writes_the_published_schemas(installed: Installed) -> None:
    folder = installed.home / "schemas"
    installed.run("solstice", "schema", "write", str(folder))
    written = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert written
    assert written == {name: (ROOT / "schemas" / name).read_bytes() for name in written}


def test_solstice_up_builds_a_commit(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside no checkout: `python -m` looks for modules where it is started.
    monkeypatch.chdir(installed.home)
    job = {".solstice/workflow.kdl": 'job "greet" {\n    step "hello" run="echo from a wheel"\n}\n'}
    otter = repository(installed.home / "otter", job)
    with solstice_up(installed.home / "state", python=installed.folder / "bin" / "python") as up:
        assert "from a wheel" in installed.run("solstice", "enqueue", "--follow", cwd=otter.folder)
        for path in ("/", "/static/style.css", "/static/frame.css", "/static/app.js"):
            answer = httpx2.get(up.page + path, trust_env=False, verify=TLS)
            assert answer.is_success, path
