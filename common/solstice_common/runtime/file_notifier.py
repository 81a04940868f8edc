"""Wakes other processes of this machine that wait for a change.

Each listening process owns a FIFO in a shared directory; `notify` writes one byte to every FIFO there. A
notification without a listener is lost, so a listener reads the data once after it began to listen, and again
at a slow interval in case a notification was lost.
"""

import asyncio
import contextlib
import errno
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from solstice_common.runtime.private_paths import make_private_directory
from solstice_common.telemetry.log_events import LogEvent

RETRY_SECONDS: Final = 1.0
"""Seconds between two tries to open a FIFO on a machine without a free descriptor or space."""

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger(__name__)


class FileNotifier:
    """The notifier of one shared file; `directory` belongs to it alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listeners: set[asyncio.Event] = set()
        self._descriptor, self._fifo = -1, directory
        self._retry: asyncio.TimerHandle | None = None
        make_private_directory(directory)

    def notify(self) -> None:
        """Wake every listener, in every process. Cheap, never blocks, never raises; safe from any thread."""
        self._wake_listeners()

    def notify_elsewhere(self) -> None:
        """Wake every listener but those of this notifier, as `notify` does."""
        self._wake_listeners(but=self._fifo)

    def notify_here(self) -> None:
        """Wake the listeners of this notifier alone, without a file. Called in their event loop."""
        for notified in self._listeners:
            notified.set()

    def _wake_listeners(self, but: Path | None = None) -> None:
        with contextlib.suppress(OSError):
            for entry in self._directory.iterdir():
                if entry.suffix == ".fifo" and entry != but:
                    _wake_listener(entry)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every notification.

        The listener clears it before it reads the data.

        All listeners of one FileNotifier share a FIFO, and belong to one event loop. While no FIFO can be
        opened, listeners read the data at their slow interval.
        """
        notified = asyncio.Event()
        self._listeners.add(notified)
        if len(self._listeners) == 1:
            self._begin_reading()
        try:
            yield notified
        finally:
            self._listeners.remove(notified)
            if not self._listeners:
                self._end_reading()

    def _begin_reading(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._descriptor, self._fifo = self._open_fifo()
        except OSError as error:
            if self._retry is None:
                _log.warning(LogEvent.NOTIFIER_UNAVAILABLE, path=str(self._directory), detail=str(error))
            self._retry = loop.call_later(RETRY_SECONDS, self._begin_reading)
            return
        loop.add_reader(self._descriptor, self._on_readable)
        if self._retry is not None:
            self._retry = None
            _log.info(LogEvent.NOTIFIER_RECOVERED, path=str(self._directory))
            self.notify_here()  # notifications of the meantime were lost

    def _end_reading(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            return
        self._fifo.unlink(missing_ok=True)
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _open_fifo(self) -> tuple[int, Path]:
        """Return a FIFO where every notifier finds it, open for reading."""
        # Opened under a temporary name, then renamed: a notifier must not find it without a reader.
        name = uuid.uuid4().hex
        hidden, visible = self._directory / f"{name}.new", self._directory / f"{name}.fifo"
        make_private_directory(self._directory)
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

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 65536)
        self.notify_here()


def _wake_listener(fifo: Path) -> None:
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        # ENXIO: no process has it open for reading, since its owner died without removing it. Any other error
        # (too many open files, another user's file) says nothing about the listener: keep its FIFO.
        if error.errno == errno.ENXIO:
            with contextlib.suppress(OSError):
                fifo.unlink()
        return
    try:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
