"""Where a SQLite database is: in a file, or in the memory of this process.

A database in memory exists while it is open. Everything that opens the same name in this process shares it; other
processes cannot, and nothing of it is written to disk.

Source: sqlite.org/src/file/src/memdb.c (names that begin with a slash are shared by the connections of a process).
"""

import asyncio
import contextlib
import fcntl
import os
import re
import threading
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_common.runtime.file_notifier import FileNotifier
from solstice_common.runtime.memory_notifier import MemoryNotifier, Notifier
from solstice_common.settings import is_memory, sqlite_path

LOCK_POLL_SECONDS: Final = 0.5
"""Between two tries for a leader lock: what holds it sends no notification."""
_NAME: Final = re.compile(r"memory:([a-z0-9-]{0,64})")


class MemoryPlace:
    """A database in memory, with what its users share beside it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transaction = threading.Lock()
        """Held during each transaction: without a write-ahead log a reader and a writer exclude each other."""
        self.owners: set[str] = set()
        """The tokens of the brokers that have it open."""
        self._notifiers: defaultdict[str, set[MemoryNotifier]] = defaultdict(set)
        self._leader_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def address(self) -> str:
        """Its URI for SQLite."""
        return f"file:/{self.name}?vfs=memdb"

    def __str__(self) -> str:
        return f"memory:{self.name}"

    def notifier(self, purpose: str) -> Notifier:
        """Return a notifier that reaches all others of this purpose."""
        return MemoryNotifier(self._notifiers[purpose])

    @asynccontextmanager
    async def leader_lock(self, purpose: str) -> AsyncIterator[None]:
        """Wait for the lock of this purpose, and hold it until left."""
        lock = self._leader_locks[purpose]
        while not lock.acquire(blocking=False):  # noqa: ASYNC110  its holder may be in another event loop
            await asyncio.sleep(LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()


SqlitePlace = Path | MemoryPlace

_places: Final[weakref.WeakValueDictionary[str, MemoryPlace]] = weakref.WeakValueDictionary()
_opening: Final = threading.Lock()


def sqlite_place(url: str, kind: str) -> SqlitePlace:
    """Return the place that a `sqlite:` or `memory:` URL names.

    `kind` tells databases in memory apart whose URLs are equal; files have names of their own. Raises ConfigurationError.
    """
    if not is_memory(url):
        return sqlite_path(url)
    name = _NAME.fullmatch(url)
    if name is None:
        raise ConfigurationError(
            f"{url!r}: write memory: or memory:NAME, with a name of lower-case letters, digits and hyphens"
        )
    return memory_place(f"{kind}/{name[1]}")


def memory_place(name: str) -> MemoryPlace:
    """Return the database in memory of this name, to all users the same."""
    with _opening:
        return _places.setdefault(name, MemoryPlace(name))


def notifier_beside(place: SqlitePlace, ending: str) -> Notifier:
    """Return a notifier of that database; `ending` tells several of one database apart."""
    if isinstance(place, MemoryPlace):
        return place.notifier(ending)
    return FileNotifier(place.with_name(place.name + ending))


def leader_lock_beside(place: SqlitePlace, ending: str) -> AbstractAsyncContextManager[None]:
    """Return a lock that one user of that database holds at a time."""
    if isinstance(place, MemoryPlace):
        return place.leader_lock(ending)
    return _file_lock(place.with_name(place.name + ending))


@asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    """Wait for the lock of a file, and hold it until left or killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _is_taken(descriptor):  # noqa: ASYNC110  another process's lock sends no notification
            await asyncio.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    """Take the lock, unless another process holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
