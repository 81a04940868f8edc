"""A short-lived child process and its output, cheaply.

uvloop forks to start one, which copies the page tables of this whole process: several milliseconds of processor time.
`subprocess` does not (it uses vfork where there is one), so only the reading is left to the event loop.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that leads a session of its own. Both outputs have to be read."""

    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    process: subprocess.Popen[bytes]

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.poll()
        return code if code is not None else await asyncio.to_thread(self.process.wait)

    def kill(self) -> None:
        """It, and all that it has started and that stayed in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


@asynccontextmanager
async def child(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], given: bytes
) -> AsyncIterator[Child]:
    """A child that runs, with `given` as its whole input; killed on leaving.

    Raises OSError when it cannot be started.
    """
    process = _started(command, directory, environment, given)
    running = Child(stdout=asyncio.StreamReader(), stderr=asyncio.StreamReader(), process=process)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(running.wait)
        stack.callback(running.kill)
        for pipe, reader in ((process.stdout, running.stdout), (process.stderr, running.stderr)):
            if pipe is not None:
                stack.enter_context(pipe)
                stack.enter_context(_feeding(reader, pipe.fileno()))
        yield running


@contextmanager
def _feeding(reader: asyncio.StreamReader, fd: int) -> Iterator[None]:
    """Let the reader have what comes out of a pipe, to its end.

    The loop's own `connect_read_pipe` will not do: uvloop's closes the number of the descriptor a second time, a turn
    later, when a thread may have got the same number for a file of its own.
    """
    loop = asyncio.get_running_loop()

    def feed() -> None:
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return
        if piece:
            reader.feed_data(piece)
        else:
            loop.remove_reader(fd)
            reader.feed_eof()

    os.set_blocking(fd, False)
    loop.add_reader(fd, feed)
    try:
        yield
    finally:
        loop.remove_reader(fd)


def _started(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], given: bytes
) -> subprocess.Popen[bytes]:
    """This takes about a millisecond, in which nothing else runs."""
    with _file_of(given) if given else nullcontext(subprocess.DEVNULL) as stdin:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


@contextmanager
def _file_of(given: bytes) -> Iterator[IO[bytes]]:
    """A file rather than a pipe: it never fills up, however little the child reads."""
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        yield file
