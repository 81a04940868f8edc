"""Runs a service as a real process, and waits for its log events."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import IO, Any, Final, TypeVar

from tests.servers.forks import PROGRAMS, ForkedProgram
from tests.servers.guarded_process import is_stopped

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

    process: "Popen[bytes] | ForkedProgram"
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
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_stopped(self.process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(WAIT_SECONDS)


FORKED: Final = {f"from {module} import main; main()": name for name, module in PROGRAMS.items()}
"""Our programs by their code."""
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

    `before` is a command in front of it, which replaces itself by it. Our programs are forks where nothing is in front of
    them, which takes half a second less of a processor.
    """
    readable, writable = os.pipe()
    with os.fdopen(readable) as lines, Path(os.devnull).open("r+b") as nothing:
        try:
            environment = {"LOG_FORMAT": "json", **environment}
            process: Popen[bytes] | ForkedProgram
            if before or code not in FORKED:
                process = Popen(
                    [*before, sys.executable, "-c", code, command],
                    env=environment,
                    stdin=nothing,
                    stdout=nothing,
                    stderr=writable,
                )
            else:
                process = ForkedProgram(
                    (FORKED[code], command),
                    env=environment,
                    stdin=nothing.fileno(),
                    stdout=nothing.fileno(),
                    stderr=writable,
                )
        finally:
            os.close(writable)
        running = kind(process=process)
        listener = threading.Thread(target=running.listen, args=(lines,), name=f"log of {command}")
        listener.start()
        try:
            running.logged(started)
            yield running
        finally:
            process.kill()
            process.wait()
            listener.join()
