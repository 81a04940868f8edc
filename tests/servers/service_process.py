"""Runs a service as a real process, and waits for its log events."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import Popen
from typing import IO, Any, TypeVar

WAIT_SECONDS = 60.0
INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "HOME",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "SOLSTICE_PUBLIC_INTERFACES",
    "COVERAGE_PROCESS_START",
)


def base_environment() -> dict[str, str]:
    """What a service needs of this process's environment, without any settings."""
    stored = {name: os.environ[name] for name in INHERITED if name in os.environ}
    # The test machines are busy with tests; only a test of the governor sets its limit.
    return {**stored, "GOVERNOR": "off"}


@dataclass(kw_only=True)
class ServiceProcess:
    """A running service and the events it has logged."""

    process: "Popen[str]"
    events: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _silent: bool = False

    def listen(self, lines: IO[str]) -> None:
        """Collect events until the process has closed its end."""
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": line.rstrip()}
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()

    def logged(self, name: str, **fields: object) -> dict[str, Any]:
        """Wait for the first event of that name with these fields."""
        expected = {"event": name, **fields}

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if expected.items() <= event.items()]

        with self._changed:
            self._changed.wait_for(lambda: found() or self._silent, WAIT_SECONDS)
            if not found():
                raise AssertionError(f"no event {expected} in {self.events}")
            return found()[0]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def freeze(self) -> None:
        """Stop the process without its knowledge (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(WAIT_SECONDS)


S = TypeVar("S", bound=ServiceProcess)


@contextmanager
def service_process(
    kind: type[S],
    code: str,
    command: str,
    *,
    environment: Mapping[str, str],
    started: str,
    before: Sequence[str] = (),
) -> Iterator[S]:
    """Run `command`, with `code` as its entry, until left.

    It has logged `started` when this yields, and is killed afterwards if it still runs.

    `before` is a command in front of it, which replaces itself by it.
    """
    with Popen(
        [*before, sys.executable, "-c", code, command],
        env={"LOG_FORMAT": "json", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = kind(process=process)
        assert process.stderr is not None
        listener = threading.Thread(target=running.listen, args=(process.stderr,), name=f"log of {command}")
        listener.start()
        try:
            running.logged(started)
            yield running
        finally:
            process.kill()
            process.wait()
            listener.join()
