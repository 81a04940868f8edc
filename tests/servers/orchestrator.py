"""`orchestrator run` as a real process on an embedded broker and a SQLite store, with short leases."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import IO, Any

START = "from solstice_orchestrator.cli import main; main()"
WAIT_SECONDS = 60.0
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "VIRTUAL_ENV", "PYTHONPATH", "COVERAGE_PROCESS_START")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the orchestrators of one test share."""

    directory: Path

    @property
    def broker_url(self) -> str:
        return f"sqlite:///{self.directory / 'broker.db'}"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.directory / 'store.db'}"

    def environment(self, **settings: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {
            **kept,
            "AMQP_URL": self.broker_url,
            "DATABASE_URL": self.database_url,
            "WORKSPACES": str(self.directory / "workspaces"),
            "ORCHESTRATOR_PORT": "0",
            "GIT_PROTOCOLS": "file",
            "CAPACITY_MAP": "linux=4",
            "LEASE_SECONDS": "3",
            "RENEW_SECONDS": "1",
            "RESCUE_SECONDS": "0.5",
            "RETRY_BASE_SECONDS": "0.1",
            "LOG_FORMAT": "json",
            **settings,
        }


@dataclass(kw_only=True)
class OrchestratorProcess:
    """A running orchestrator and the events it has logged."""

    process: "Popen[str]"
    events: list[dict[str, Any]] = field(default_factory=list)
    _said: threading.Condition = field(default_factory=threading.Condition)
    _silent: bool = False

    def listen(self, lines: IO[str]) -> None:
        """Collect events until the process has closed its end."""
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": line.rstrip()}
            with self._said:
                self.events.append(event)
                self._said.notify_all()
        with self._said:
            self._silent = True
            self._said.notify_all()

    def logged(self, name: str) -> dict[str, Any]:
        """Wait for the first event of that name."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if event.get("event") == name]

        with self._said:
            self._said.wait_for(lambda: found() or self._silent, WAIT_SECONDS)
            if not found():
                raise AssertionError(f"no event {name!r} in {self.events}")
            return found()[0]

    @property
    def url(self) -> str:
        return str(self.logged("orchestrator.started")["url"])

    @property
    def worker_id(self) -> str:
        return str(self.logged("orchestrator.started")["worker_id"])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def freeze(self) -> None:
        """Let it do nothing, without knowing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def orchestrator(place: Place, **settings: str) -> Iterator[OrchestratorProcess]:
    """A ready orchestrator; killed afterwards if it still runs."""
    with Popen(
        [sys.executable, "-c", START, "run"],
        env=place.environment(**settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = OrchestratorProcess(process=process)
        assert process.stderr is not None
        listener = threading.Thread(target=running.listen, args=(process.stderr,), name="orchestrator-log")
        listener.start()
        try:
            running.logged("orchestrator.started")
            yield running
        finally:
            process.kill()
            process.wait()
            listener.join()
