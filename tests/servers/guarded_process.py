"""A local server in one directory, which ends when this process does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.servers import process_guard

START_SECONDS: Final = 100.0
"""Seconds for a start.

Several nodes may start at once on a small machine; a test has two minutes.
"""
FREEZE_SECONDS: Final = 30.0


class GuardedProcess:
    """One process at a time under a `process_guard`; it can be started again."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not ended."""
        return self._guard is not None

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], answers: Callable[[], bool]
    ) -> None:
        """Start it and return when it answers.

        RuntimeError with its last output when it does not.
        """
        with (self._directory / "output").open("ab") as output:
            self._guard = subprocess.Popen(
                # It needs the standard library alone, and starts in half the time without the rest.
                [sys.executable, "-I", "-S", process_guard.__file__, str(self._directory), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                cwd="/",
            )
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                self.end(b"kill\n")
                raise RuntimeError(f"{self._name} did not start:\n{self._last_output_lines()}")
            time.sleep(0.02)

    def end(self, last_word: bytes) -> None:
        """End it with this word to the guard, and wait for all processes."""
        if self._guard is None or self._guard.stdin is None:
            return
        with suppress(BrokenPipeError):
            self._guard.stdin.write(last_word)
            self._guard.stdin.flush()
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()
        self._guard = None

    def freeze(self) -> None:
        """SIGSTOP all its processes, and wait until all their threads stand."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + FREEZE_SECONDS
        while not all(map(is_stopped, self._pids())):
            assert time.monotonic() < deadline, f"{self._name} did not stop"
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> set[int]:
        return set() if self._guard is None else process_guard.descendants(self._guard.pid)

    def _last_output_lines(self) -> str:
        texts = [self._directory / "output", *sorted((self._directory / "log").glob("*.log"))]
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in texts if path.exists())


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process stand, or it has ended."""
    # The state follows the command, in parentheses, which may itself hold parentheses: proc_pid_stat(5).
    with suppress(FileNotFoundError, ProcessLookupError):
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] in "TZ" for stat in threads)
    return True
