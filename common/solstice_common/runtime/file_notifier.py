"""Wake the other processes of this machine that wait for a change, without anybody polling.

Whoever listens owns a FIFO in a shared directory; ringing writes one byte to every FIFO there. A bell that rings while
nobody listens is not remembered, so a listener looks at the data once after it began to listen, and again at a slow
interval in case a ring went astray.
"""

import asyncio
import contextlib
import errno
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Doorbell:
    """The bell of one shared file; `directory` belongs to it alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listeners: set[asyncio.Event] = set()
        self._descriptor, self._fifo = -1, directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ring(self) -> None:
        """Wake every listener, in every process. Cheap, never blocks, never raises; safe from any thread."""
        with contextlib.suppress(OSError):
            for entry in self._directory.iterdir():
                if entry.suffix == ".fifo":
                    _ring(entry)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set at every ring; the listener clears it before it looks.

        All listeners of one Doorbell share a FIFO, and belong to one event loop. Raises OSError when the directory
        cannot hold a FIFO.
        """
        rung = asyncio.Event()
        if not self._listeners:
            self._descriptor, self._fifo = self._hang()
            asyncio.get_running_loop().add_reader(self._descriptor, self._answer)
        self._listeners.add(rung)
        try:
            yield rung
        finally:
            self._listeners.remove(rung)
            if not self._listeners:
                self._fifo.unlink(missing_ok=True)
                asyncio.get_running_loop().remove_reader(self._descriptor)
                os.close(self._descriptor)

    def _hang(self) -> tuple[int, Path]:
        """A FIFO where every ringer finds it, open for reading."""
        # Opened under a name that no ringer looks for, then renamed: a ringer must not find it without a reader.
        name = uuid.uuid4().hex
        hidden, visible = self._directory / f"{name}.new", self._directory / f"{name}.fifo"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.mkfifo(hidden, 0o600)
        descriptor = -1
        try:
            descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
            hidden.rename(visible)
        except BaseException:
            hidden.unlink(missing_ok=True)
            if descriptor >= 0:
                os.close(descriptor)
            raise
        return descriptor, visible

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 65536)
        for rung in self._listeners:
            rung.set()


def _ring(fifo: Path) -> None:
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        # ENXIO: nobody has it open for reading, its owner died without tidying up. Anything else (too many open
        # files, not our user's) says nothing about the listener: leave its bell alone.
        if error.errno == errno.ENXIO:
            with contextlib.suppress(OSError):
                fifo.unlink()
        return
    try:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
