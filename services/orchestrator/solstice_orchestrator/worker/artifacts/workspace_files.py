"""Open the files of a workspace on this machine, for artifacts.

A process that escaped may change it meanwhile. Directories and files are opened one from another, never by a path that
could lead elsewhere.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from solstice_orchestrator.worker.artifacts.sources import expect_plain_file

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """Opens a workspace (`sources.ArtifactSource`)."""

    path: Path

    @contextmanager
    def __call__(self) -> Iterator["_Directory"]:
        with opened_directory(self.path) as descriptor:
            yield _Directory(descriptor)


@dataclass(frozen=True, slots=True)
class _Directory:
    descriptor: int

    def mode(self, name: bytes) -> int | None:
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, most: int) -> Sequence[tuple[bytes, bool]]:
        with os.scandir(self.descriptor) as listing:
            return [
                (os.fsencode(each.name), each.is_dir(follow_symlinks=False)) for each in islice(listing, most)
            ]

    @contextmanager
    def folder(self, name: bytes) -> Iterator["_Directory"]:
        with opened_directory(name, self.descriptor) as descriptor:
            yield _Directory(descriptor)

    @contextmanager
    def file(self, name: bytes, path: bytes) -> Iterator["_File"]:
        with opened_file(self.descriptor, name, path) as descriptor:
            yield _File(descriptor, os.fstat(descriptor))


@dataclass(frozen=True, slots=True)
class _File:
    descriptor: int
    before: os.stat_result

    @property
    def size(self) -> int:
        return self.before.st_size

    @property
    def is_executable(self) -> bool:
        return bool(self.before.st_mode & stat.S_IXUSR)

    def read(self, most: int) -> bytes:
        return os.read(self.descriptor, most)

    def has_changed(self) -> bool:
        return _moment(os.fstat(self.descriptor)) != _moment(self.before)


def _moment(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


@contextmanager
def opened_directory(name: bytes | Path, above: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_file(directory: int, name: bytes, path: bytes) -> Iterator[int]:
    """Open a plain file, and no device or named pipe.

    What it is, is known before it is opened.
    """
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        expect_plain_file(os.fstat(found).st_mode, path)
        content = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        yield content
    finally:
        os.close(content)
