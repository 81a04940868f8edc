"""Wake the other processes of this machine that wait for a change, without anybody polling.

Each listener owns a FIFO in a shared directory; ringing writes one byte to every FIFO there. A bell that rings while
nobody listens is not remembered, so a listener looks at the data once after it began to listen, and again at a slow
interval in case a ring went astray.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Doorbell:
    """The bell of one shared file; `directory` belongs to it alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def ring(self) -> None:
        """Wake every listener, in every process. Cheap, never blocks; safe from any thread."""
        for entry in self._directory.glob("*.fifo"):
            try:
                descriptor = os.open(entry, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                # Nobody has it open for reading: its owner died without tidying up.
                with contextlib.suppress(OSError):
                    entry.unlink()
                continue
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(descriptor, b"!")
            os.close(descriptor)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set at every ring; the listener clears it before it looks."""
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        # Opened under a name that no ringer looks for, then renamed: a ringer must not find it without a reader.
        name = uuid.uuid4().hex
        hidden, visible = self._directory / f"{name}.new", self._directory / f"{name}.fifo"
        os.mkfifo(hidden, 0o600)
        descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
        hidden.rename(visible)

        def answer() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)
            rung.set()

        loop.add_reader(descriptor, answer)
        try:
            yield rung
        finally:
            loop.remove_reader(descriptor)
            visible.unlink(missing_ok=True)
            os.close(descriptor)
