"""The orchestrator's side of the process from which supervisors are forked."""

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

from solstice_orchestrator.processes import small_copies, small_trees, supervisor, supervisor_starter
from solstice_orchestrator.processes.children import readable, start, wait_for_exit
from solstice_orchestrator.processes.orphans import remember_child, remember_starter

FORK_SECONDS: Final = 5.0
"""How long a fork may take. After it the starter is replaced: a job may have stopped it."""


class ForkedSupervisor:
    """A forked supervisor, a child of this process, and our ends of its pipes."""

    def __init__(self, pid: int, pipes: Sequence[IO[bytes]], given: int) -> None:
        """`given`: how many bytes of its plan it has."""
        self.pid, self.given = pid, given
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        with self._waiting:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    # It was killed before we knew it, and reaped as an orphan.
                    self.returncode = -signal.SIGKILL
                else:
                    self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def kill(self) -> None:
        """Kill the process unless it has ended and its id may be another's."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class SupervisorStarter:
    """Forks supervisors from a prepared process, which it starts when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._possible = (
            sys.platform.startswith("linux") and platform.machine() in supervisor_starter.CLONE_NUMBERS
        )

    @property
    def pid(self) -> int | None:
        """The prepared process, once it was needed."""
        return self._process.pid if self._process else None

    async def fork(
        self, group: Path | None, plan: bytes = b"", checkout: Path | None = None
    ) -> ForkedSupervisor | None:
        """Fork a supervisor that joins the control group; return None when that fails.

        It finds the plan, or as much of it as fits, in its pipe; with a directory for a checkout, first what
        `small_copies.sent` returns. When that fails, the caller starts one without the prepared process, which is
        replaced at the next call.
        """
        if not self._possible:
            return None
        with ExitStack() as unused:
            process = self._process
            try:
                near, far = _pipes(unused)
                given = _given(near[0], plan)
                process = self._send(_request(group, checkout), far)
                for pipe in far:
                    pipe.close()
                pid = await _process_id(near[1])
            except (OSError, TimeoutError, ValueError):
                # Another call may have replaced it already.
                if process is self._process:
                    await self.aclose()
                return None
            forked = ForkedSupervisor(pid, near, given)
            remember_child(forked)
            unused.pop_all()
        return forked

    def _send(self, request: bytes, pipes: Sequence[IO[bytes]]) -> "subprocess.Popen[bytes]":
        if self._requests is None or self._process is None:
            self._requests, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._requests.setblocking(False)
            with far:
                self._process = start(
                    (
                        *(sys.executable, "-I", "-S", supervisor_starter.__file__),
                        *(supervisor.__file__, small_trees.__file__, small_copies.__file__),
                    ),
                    Path("/"),
                    {"LC_ALL": "C.UTF-8"},
                    stdin=far.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            remember_starter(self._process)
        socket.send_fds(self._requests, [request], [pipe.fileno() for pipe in pipes])
        return self._process

    async def aclose(self) -> None:
        """End the prepared process; supervisors that it forked go on."""
        process, self._process = self._process, None
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if process is not None:
            process.kill()
            await wait_for_exit(process)


def _pipes(opened: ExitStack) -> tuple[Sequence[IO[bytes]], Sequence[IO[bytes]]]:
    """Return our ends of a supervisor's three pipes, and its own; `opened` closes them."""
    near, far = list[IO[bytes]](), list[IO[bytes]]()
    for its_mode, our_mode in (("rb", "wb"), ("wb", "rb"), ("wb", "rb")):
        readable_end, writable_end = os.pipe()
        ends = {"rb": readable_end, "wb": writable_end}
        far.append(opened.enter_context(os.fdopen(ends[its_mode], its_mode, buffering=0)))
        near.append(opened.enter_context(os.fdopen(ends[our_mode], our_mode, buffering=0)))
    return near, far


def _request(group: Path | None, checkout: Path | None) -> bytes:
    return b"\0".join(os.fsencode(path) if path else b"" for path in (group, checkout))


def _given(control: IO[bytes], plan: bytes) -> int:
    """Put what there is room for into the empty pipe; return how many bytes."""
    os.set_blocking(control.fileno(), False)
    return os.write(control.fileno(), plan)


async def _process_id(verdicts: IO[bytes]) -> int:
    """Read the first line of a supervisor; raises ValueError when the pipe closes without it."""
    os.set_blocking(verdicts.fileno(), False)
    async with asyncio.timeout(FORK_SECONDS):
        await readable(verdicts.fileno())
    return int(os.read(verdicts.fileno(), supervisor_starter.ID_BYTES))
