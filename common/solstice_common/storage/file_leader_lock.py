"""Locks a file for one process of this machine until the process ends."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.5


@asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """Wait for the lock of `path`, and hold it until left."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _lock(descriptor):  # noqa: ASYNC110  another process's lock sends no notification
            await asyncio.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
