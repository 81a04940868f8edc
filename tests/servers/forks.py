"""Starts our programs as forks of a process that has imported them: see `program_forks`."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from tests.servers import program_forks

PROGRAMS: Final = dict(
    zip(("solstice", "forge-integration", "orchestrator"), program_forks.PROGRAMS, strict=True)
)


class ForkedProgram:
    """One that runs, with what of `subprocess.Popen` is used here."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> None:
        """Start it; the descriptors are as in `Popen`, and only descriptors."""
        self.args = [*words]
        self.returncode: int | None = None
        request = {
            "module": PROGRAMS[words[0]],
            "argv": self.args,
            "env": {**env},
            "cwd": str(cwd or Path.cwd()),
        }
        self._reports, reporting = os.pipe()
        socket.send_fds(_link(), [json.dumps(request).encode()], [stdin, stdout, stderr, reporting])
        os.close(reporting)
        self.pid = self._number()

    def _number(self) -> int:
        """The next line of the reports about the process."""
        written = b""
        while not written.endswith(b"\n"):
            got = os.read(self._reports, 1)
            assert got, "what forks has ended"
            written += got
        return int(written)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._reports, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._number()
            os.close(self._reports)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Command(ForkedProgram):
    """A command whose output is read when it has ended."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        given: str = "",
        errors_apart: bool = True,
    ) -> None:
        # Files, which hold any amount while nothing reads.
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed when it is read
        self._errors: IO[bytes] = TemporaryFile() if errors_apart else self._output  # noqa: SIM115  as above
        with TemporaryFile() as typed:
            typed.write(given.encode())
            typed.seek(0)
            output, errors = self._output.fileno(), self._errors.fileno()
            super().__init__(words, env=env, cwd=cwd, stdin=typed.fileno(), stdout=output, stderr=errors)

    def communicate(self, timeout: float = 100) -> tuple[str, str]:
        """Wait for its end; all that it wrote. Raises subprocess.TimeoutExpired, and may be called again."""
        self.wait(timeout)
        with self._output, self._errors:
            for each in (self._output, self._errors):
                each.seek(0)
            output = _text(self._output.read())
            return output, "" if self._errors is self._output else _text(self._errors.read())


def _text(written: bytes) -> str:
    """The text, as `subprocess` gives it."""
    return written.decode().replace("\r\n", "\n").replace("\r", "\n")


def run_command(
    *words: str, env: Mapping[str, str], cwd: Path | None = None, given: str = "", timeout: float = 100
) -> "subprocess.CompletedProcess[str]":
    """Run `solstice`, `forge-integration` or `orchestrator` to its end, with text for its standard input."""
    command = Command(words, env=env, cwd=cwd, given=given)
    try:
        output, errors = command.communicate(timeout)
    except subprocess.TimeoutExpired:
        command.kill()
        raise
    return subprocess.CompletedProcess(command.args, command.wait(), output, errors)


@cache
def _link() -> socket.socket:
    """The way to the process that forks, which lives as long as this one."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        # Without the folder of the script on the path: names there are those of packages, too.
        process = subprocess.Popen([sys.executable, "-P", program_forks.__file__], stdin=far.fileno())

    def end() -> None:
        near.close()
        process.wait()

    atexit.register(end)
    return near
