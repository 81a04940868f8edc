"""Runs `solstice up` as a real process, with git repositories to build.

It has free ports and a state directory of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx2

from solstice_common.runtime import public_interfaces
from tests.servers.forks import ForkedProgram, run_command
from tests.servers.ports import free_ports
from tests.servers.server import TLS

READY_SECONDS = 60
END_SECONDS = 60
SETTINGS = (
    "AMQP_",
    "FORGE",
    "GITHUB_",
    "GITEA_",
    "GITLAB_",
    "SOLSTICE_",
    "ORCHESTRATOR_",
    "GIT_",
    "NO_COLOR",
    "OTEL_",
)


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a person without settings, with this state directory.

    Whether the inside of libraries is used is a question about the installation, and no setting.
    """
    stored = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SETTINGS) or name == public_interfaces.VARIABLE
    }
    # Machines on which tests run are busy with them.
    stored["GOVERNOR"] = "off"
    return {**stored, "SOLSTICE_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}


@dataclass(frozen=True, kw_only=True)
class SolsticeUp:
    """A running `solstice up`."""

    process: "Popen[bytes] | ForkedProgram"
    page: str
    webhooks: str
    home: Path
    ready_line: str
    """What it printed once it was ready."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands in another terminal."""
        return {**clean_environment(self.home), "SOLSTICE_URL": self.page}

    def solstice(self, *arguments: str | Path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `solstice` in another process. `check` is the exit code that it must end with."""
        done = run_command("solstice", *map(str, arguments), env=self.environment)
        assert check is None or done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def api(self, path: str) -> dict[str, Any]:
        """What the orchestrator's API answers, without starting a process."""
        answer: dict[str, Any] = (
            httpx2.get(f"{self.page}/api/v1{path}", trust_env=False, verify=TLS).raise_for_status().json()
        )
        return answer

    def json(self, *arguments: str | Path, check: int | None = 0) -> dict[str, Any]:
        """What `solstice ... --json` answers."""
        answer: dict[str, Any] = json.loads(self.solstice(*arguments, "--json", check=check).stdout)
        return answer


@contextmanager
def solstice_up(
    home: Path, *arguments: str, python: Path | str = sys.executable, fresh: bool = False
) -> Iterator[SolsticeUp]:
    """Start it and wait until it is ready.

    Leaving asks it to end, and fails unless it ends well. The Python of another checkout starts the `solstice` of that.
    A `fresh` one has imported nothing else, for tests that measure its memory.
    """
    home.mkdir(parents=True, exist_ok=True)
    forge_port, orchestrator_port = free_ports(2)
    ports = ("--forge-port", str(forge_port), "--orchestrator-port", str(orchestrator_port))
    words = ("up", "--json", *ports, *arguments)
    readable, writable = os.pipe()
    with os.fdopen(readable) as lines:
        process: Popen[bytes] | ForkedProgram
        try:
            with (home / "up.log").open("w") as log, Path(os.devnull).open("rb") as nothing:
                if fresh or str(python) != sys.executable:
                    process = Popen(
                        [str(python), "-m", "solstice_cli", *words],
                        env=clean_environment(home),
                        stdin=nothing,
                        stdout=writable,
                        stderr=log,
                    )
                else:
                    process = ForkedProgram(
                        ("solstice", *words),
                        env=clean_environment(home),
                        stdin=nothing.fileno(),
                        stdout=writable,
                        stderr=log.fileno(),
                    )
        finally:
            os.close(writable)
        try:
            line = lines.readline()
            assert line, (home / "up.log").read_text()
            reported = json.loads(line)
            yield SolsticeUp(
                process=process,
                page=reported["page"],
                webhooks=reported["webhooks"],
                home=home,
                ready_line=line,
            )
            if process.poll() is None:
                process.terminate()
            assert process.wait(END_SECONDS) == 0, (home / "up.log").read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A git repository of this machine."""

    folder: Path

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=Ada Example", "-c", "user.email=ada@forge.example")
        done = subprocess.run(
            ["git", *identity, "-C", str(self.folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def commit(self, files: dict[str, str]) -> str:
        """Write these files and commit them; returns the commit."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "A change")
        return self.head


def repository(folder: Path, files: dict[str, str]) -> Repository:
    """A new repository with one commit on `main`."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True, timeout=60)
    made = Repository(folder=folder)
    made.commit(files)
    return made
