"""Objects of caches as files of one directory, which several orchestrators may share."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from solstice_common.runtime.private_paths import make_private_directory, private_opener
from solstice_orchestrator.worker.caches.cache_objects import IncomingObject, StoredObject

T = TypeVar("T")

INCOMING_SECONDS: Final = 86_400.0
"""A file that nothing was added to for so long has no writer any more."""
EMPTY_SECONDS: Final = 86_400.0
"""How long an empty folder stays."""
_OBJECTS: Final = "objects"
_INCOMING: Final = "incoming"
_TRIES: Final = 10
"""A sweep may remove an empty folder before a file is in it."""


@dataclass(frozen=True, slots=True)
class ObjectDirectory:
    """One directory (`CacheObjects`); a file comes by rename or link, so it is whole."""

    path: Path

    @property
    def place(self) -> str:
        return str(self.path)

    def room(self) -> int | None:
        self._prepare()
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    @contextmanager
    def incoming(self) -> Iterator[IncomingObject]:
        self._prepare()
        path = self.path / _INCOMING / secrets.token_hex(16)
        with open(path, "xb", opener=private_opener) as file:
            try:
                yield IncomingObject(path=path, file=file)
            finally:
                path.unlink(missing_ok=True)

    def put(self, incoming: IncomingObject, name: str) -> None:
        incoming.file.flush()
        os.fsync(incoming.file.fileno())
        self._within(name, incoming.path.replace)

    def put_new(self, name: str, content: bytes) -> bool:
        with self.incoming() as written:
            written.file.write(content)
            written.file.flush()
            os.fsync(written.file.fileno())
            try:
                self._within(name, lambda path: os.link(written.path, path))
            except FileExistsError:
                return False
        return True

    def touch(self, name: str) -> None:
        def made(path: Path) -> None:
            path.touch(mode=0o600)
            os.utime(path)

        self._within(name, made)

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def list(self, folder: str) -> Iterator[StoredObject]:
        yield from _files(self._path(folder), folder)

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def sweep(self, now: float) -> None:
        if not (self.path / _INCOMING).is_dir():
            return
        with os.scandir(self.path / _INCOMING) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime < now - INCOMING_SECONDS:
                        Path(file.path).unlink()
        for folder, _, _ in os.walk(self.path / _OBJECTS, topdown=False):
            # Not empty, or a file has just come.
            with contextlib.suppress(OSError):
                if Path(folder).stat().st_mtime < now - EMPTY_SECONDS:
                    Path(folder).rmdir()

    def _prepare(self) -> None:
        make_private_directory(self.path / _INCOMING)

    def _path(self, name: str) -> Path:
        return self.path / _OBJECTS / name

    def _within(self, name: str, step: Callable[[Path], T]) -> T:
        """Do something with the path of an object, and make its name durable."""
        path = self._path(name)
        for left in reversed(range(_TRIES)):
            make_private_directory(path.parent)
            try:
                done = step(path)
            except FileNotFoundError:
                if not left:
                    raise
            else:
                _flush(path.parent)
                return done
        raise AssertionError


def _files(path: Path, name: str) -> Iterator[StoredObject]:
    try:
        with os.scandir(path) as entries:
            found = list(entries)
    except FileNotFoundError:
        return
    for entry in found:
        inner = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), inner)
        elif entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield StoredObject(inner, status.st_size, status.st_mtime)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
