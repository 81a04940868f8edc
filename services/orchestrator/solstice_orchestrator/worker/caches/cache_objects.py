"""The protocol of what stores caches: named objects, each whole or not there."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol


class StoredObject(NamedTuple):
    """An object as a list shows it."""

    name: str
    size: int
    modified: float
    """When it was written or touched, by the clock of where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingObject:
    """An object that is being written."""

    path: Path
    file: BinaryIO


class CacheObjects(Protocol):
    """Objects by their names; the methods block, and raise OSError alone.

    Any number of processes may use them at once, and be killed at any moment. A name has parts of `a-z`, `0-9`, `.` and
    `-`, between slashes.
    """

    @property
    def place(self) -> str:
        """Where they are, for people."""
        ...

    def room(self) -> int | None:
        """Return how many bytes the disk has for more; None: unknown."""
        ...

    def incoming(self) -> AbstractContextManager[IncomingObject]:
        """Open a file to write, which is gone on leaving."""
        ...

    def put(self, incoming: IncomingObject, name: str) -> None:
        """Give a written file its name.

        One that is there already is replaced: both have the same content.
        """
        ...

    def put_new(self, name: str, content: bytes) -> bool:
        """Store a small object; False: the name is taken, also at the same moment."""
        ...

    def touch(self, name: str) -> None:
        """Make an empty object, or renew its time."""
        ...

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open an object to read; FileNotFoundError without one."""
        ...

    def list(self, folder: str) -> Iterator[StoredObject]:
        """Yield all objects whose names begin with the parts of `folder`."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...

    def sweep(self, now: float) -> None:
        """Remove what killed processes have left of unfinished objects."""
        ...
