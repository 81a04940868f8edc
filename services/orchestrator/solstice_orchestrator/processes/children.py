"""Start child processes, exchange data with them through pipes, and wait for their ends.

All child processes of the orchestrator are started here.

`asyncio.create_subprocess_exec` is not used: uvloop forks to start a child, which copies the page tables of this whole
process (several milliseconds), where `subprocess` uses vfork. `connect_read_pipe` and `connect_write_pipe` are not used
either: uvloop closes the number of a descriptor that it was given as a file twice, and a thread that opens a file in
between loses it. Here every descriptor belongs to one file object, and only that closes it.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import tempfile
import termios
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.processes.orphans import StartedChild, remember_child

PIECE_BYTES: Final = 64 * 1024
EMPTIED_SECONDS: Final = 0.05
"""How often a side output is emptied. A child that fills it faster waits."""
POLL_SECONDS: Final = 0.02
"""How often a child is checked on systems without process descriptors (pidfd_open(2))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that leads its own session. Its caller has to read both outputs."""

    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    process: subprocess.Popen[bytes]

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await exit_code(self.process)

    def kill(self) -> None:
        """Kill the process, and the processes that it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


@asynccontextmanager
async def child(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    input_bytes: bytes,
    *,
    pass_fds: Sequence[int] = (),
) -> AsyncIterator[Child]:
    """Run a child with `input_bytes` as its whole input, and kill it on leaving.

    It keeps the descriptors `pass_fds`. Raises OSError when it cannot be started.
    """
    with _file_of(input_bytes) if input_bytes else nullcontext(subprocess.DEVNULL) as stdin:
        process = start(
            command,
            directory,
            environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
        )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(wait_for_exit, process)
        running = Child(
            stdout=stack.enter_context(pipe_reader(process.stdout)),
            stderr=stack.enter_context(pipe_reader(process.stderr)),
            process=process,
        )
        stack.callback(running.kill)
        yield running


async def run(*command: str) -> int:
    """Run a command without input or output, and return its exit code.

    Raises OSError when it cannot be started. When the caller is cancelled, the command is not killed, only waited for.
    """
    nowhere, environment = subprocess.DEVNULL, {"PATH": os.environ.get("PATH", os.defpath)}
    return await wait_for_exit(
        start(command, Path(), environment, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    )


def start(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in its own session.

    This blocks the event loop for about a millisecond.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    remember_child(process)
    return process


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a child that ends soon.

    A cancelled caller waits nevertheless, so that no zombie is left.
    """
    code = process.poll()
    return (
        code
        if code is not None
        else await run_to_completion(exit_code(process), f"end of process {process.pid}")
    )


async def exit_code(process: StartedChild) -> int:
    """Wait for a child's end, and return its exit code.

    This uses no thread, because a job may have used up all of them.
    """
    while (code := process.poll()) is None:
        try:
            watched = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # The system is not Linux, the kernel is old, a sandbox forbids it, or no descriptor is left.
            await asyncio.sleep(POLL_SECONDS)
            continue
        with os.fdopen(watched, "rb", buffering=0):
            await readable(watched)
    return code


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read, or is at its end."""
    loop = asyncio.get_running_loop()
    is_readable = loop.create_future()

    def report_readable() -> None:
        if not is_readable.done():
            is_readable.set_result(None)

    loop.add_reader(fd, report_readable)
    try:
        await is_readable
    finally:
        loop.remove_reader(fd)


class PipeReader(asyncio.StreamReader):
    """Reads a pipe, and knows how much was written into it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(limit=PIECE_BYTES)
        self._pipe = pipe
        self.bytes_read = 0
        """Bytes that this process has read from the pipe."""

    @property
    def arrived(self) -> int:
        """How many bytes were written up to now, read or not.

        Bytes that another process took from the pipe are not counted.
        """
        if self._pipe.closed:
            return self.bytes_read
        unread = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, struct.pack("i", 0)))
        return self.bytes_read + int(unread[0])


@contextmanager
def pipe_reader(pipe: IO[bytes] | None) -> Iterator[PipeReader]:
    """Return a reader of a pipe; leaving closes the pipe.

    At most twice PIECE_BYTES are buffered here; then the pipe fills up and stops the child.
    """
    if pipe is None:
        raise ValueError("the child was started without this pipe")
    reader = PipeReader(pipe)
    with pipe:
        feed = _PipeTransport(reader, pipe.fileno())
        reader.set_transport(feed)
        feed.resume_reading()
        try:
            yield reader
        finally:
            feed.close()


class _PipeTransport(asyncio.ReadTransport):
    """Moves bytes from a pipe to its reader."""

    def __init__(self, reader: PipeReader, fd: int) -> None:
        super().__init__()
        self._reader, self._fd, self._loop = reader, fd, asyncio.get_running_loop()
        self._at_end = False
        os.set_blocking(fd, False)

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._at_end:
            self._loop.add_reader(self._fd, self._move)

    def is_closing(self) -> bool:
        return self._at_end

    def close(self) -> None:
        self._at_end = True
        self._loop.remove_reader(self._fd)

    def _move(self) -> None:
        try:
            piece = os.read(self._fd, PIECE_BYTES)
        except BlockingIOError:
            return
        if piece:
            self._reader.bytes_read += len(piece)
            self._reader.feed_data(piece)
        else:
            self.close()
            self._reader.feed_eof()


class SideOutput:
    """Takes what a child writes beside its outputs, in many small pieces.

    It is emptied now and then: this process is not woken for each piece.
    """

    def __init__(self, readable: IO[bytes], writable: IO[bytes], max_bytes: int) -> None:
        self._readable, self._writable, self._max_bytes = readable, writable, max_bytes
        self._content = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(readable.fileno(), False)
        self._timer = self._loop.call_later(EMPTIED_SECONDS, self._empty_again)

    @property
    def fd(self) -> int:
        """The descriptor to pass to the child, which opens it by name, as `/dev/fd/N`."""
        return self._writable.fileno()

    def content(self) -> bytes:
        """Return the first `max_bytes` that were written up to now."""
        self._empty()
        return bytes(self._content)

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            # Once: a child that goes on writing must not keep this process from other work.
            piece = os.read(self._readable.fileno(), PIECE_BYTES)
            self._content += piece[: self._max_bytes - len(self._content)]

    def _empty_again(self) -> None:
        self._empty()
        self._timer = self._loop.call_later(EMPTIED_SECONDS, self._empty_again)

    def close(self) -> None:
        self._timer.cancel()


@contextmanager
def side_output(max_bytes: int) -> Iterator[SideOutput]:
    """Return a new side output; leaving closes it. Raises OSError without a free descriptor."""
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb", buffering=0) as reading, os.fdopen(writable, "wb", buffering=0) as writing:
        pipe = SideOutput(reading, writing, max_bytes)
        try:
            yield pipe
        finally:
            pipe.close()


@contextmanager
def pipe_writer(pipe: IO[bytes] | None) -> Iterator[Callable[[bytes], None]]:
    """Return a function that sends bytes into a pipe without waiting; leaving closes the pipe.

    Unsent bytes are dropped on leaving, and so are bytes for a child that has ended.
    """
    if pipe is None:
        raise ValueError("the child was started without this pipe")
    loop, fd, waiting = asyncio.get_running_loop(), pipe.fileno(), bytearray()
    os.set_blocking(fd, False)

    def move() -> None:
        try:
            del waiting[: os.write(fd, waiting)]
        except BlockingIOError:
            pass
        except OSError:
            waiting.clear()
        if not waiting:
            loop.remove_writer(fd)

    def send(words: bytes) -> None:
        if pipe.closed:
            return
        if not waiting:
            loop.add_writer(fd, move)
        waiting.extend(words)

    with pipe:
        try:
            yield send
        finally:
            loop.remove_writer(fd)


@contextmanager
def _file_of(input_bytes: bytes) -> Iterator[IO[bytes]]:
    """Return a temporary file of these bytes, which cannot fill up as a pipe can."""
    with tempfile.TemporaryFile() as file:
        file.write(input_bytes)
        file.seek(0)
        yield file
