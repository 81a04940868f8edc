"""Finds out which processes of this machine are alive, by file locks.

Each holder keeps a lock file in a shared directory locked while it lives. When it ends, even by SIGKILL, the
kernel frees the lock at once, and the next check notices. A restarted process cannot be mistaken for the old
one, as its process id could.

Source: flock(2). Not for network file systems, where SQLite's write-ahead log does not work either.
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

_SUFFIX = ".lock"


class Owners(Protocol):
    """Who has a broker open, by tokens."""

    def hold(self) -> AbstractContextManager[str]: ...

    def dead_tokens(self) -> list[str]: ...

    def alive(self, token: str) -> bool: ...

    def forget(self, token: str) -> None: ...


class MemoryOwners:
    """The `Owners` of a broker in memory: none of them can die before the broker."""

    def __init__(self, tokens: set[str]) -> None:
        self._tokens = tokens

    @contextmanager
    def hold(self) -> Iterator[str]:
        """Be alive under a new token until the block is left."""
        token = uuid.uuid4().hex
        self._tokens.add(token)
        try:
            yield token
        finally:
            self._tokens.discard(token)

    def dead_tokens(self) -> list[str]:
        """Return none: the broker would have died with its owner."""
        return []

    def alive(self, token: str) -> bool:
        """Whether `token` is held."""
        return token in self._tokens

    def forget(self, token: str) -> None:
        """Do nothing: no file refers to it."""


class ProcessLocks:
    """The lock files of one shared file; `directory` belongs to them alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def hold(self) -> Iterator[str]:
        """Hold a lock under a new token until the block is left."""
        token = uuid.uuid4().hex
        # Locked under a temporary name, then renamed: no process may find the file without its lock.
        hidden, visible = self._directory / f"{token}.new", self._file(token)
        descriptor = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            hidden.rename(visible)
            yield token
        finally:
            hidden.unlink(missing_ok=True)
            visible.unlink(missing_ok=True)
            os.close(descriptor)

    def dead_tokens(self) -> list[str]:
        """Return the tokens whose holders ended without leaving, as far as known.

        A token stays until `forget`.
        """
        # Without a directory there are none; with too many open files the next check finds them.
        with contextlib.suppress(OSError):
            return [
                entry.stem
                for entry in self._directory.iterdir()
                if entry.suffix == _SUFFIX and not self.alive(entry.stem)
            ]
        return []

    def alive(self, token: str) -> bool:
        """Whether a process holds `token`."""
        try:
            descriptor = os.open(self._file(token), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            # Unknown (too many open files): assume that it lives, so that it loses no message.
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def forget(self, token: str) -> None:
        """Remove the file of a dead holder, once nothing refers to it."""
        self._file(token).unlink(missing_ok=True)

    def _file(self, token: str) -> Path:
        return self._directory / f"{token}{_SUFFIX}"
