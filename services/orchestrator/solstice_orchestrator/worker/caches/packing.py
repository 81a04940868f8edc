"""Pack the paths of a cache into one compressed archive.

The files are what a job has left, so all of it is hostile: no link is followed, and no device is opened. Relative links that
stay in their directory are kept as they are.
"""

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from solstice_orchestrator.worker.artifacts.sources import NoCollection, shown
from solstice_orchestrator.worker.artifacts.workspace_files import opened_directory, opened_file
from solstice_orchestrator.worker.caches.cache_tar import (
    END,
    FILE,
    FOLDER,
    LINK,
    MAX_NAME,
    TarMember,
    header_of,
    padding,
)

MAX_NAMES: Final = 200_000
"""Files, directories and links of one cache."""
MAX_DEPTH: Final = 64
"""How deep directories may be; each is open meanwhile."""
PIECE_BYTES: Final = 1024 * 1024
LEVEL: Final = 1
"""Of zstd."""
_HOME: Final = "~/"


class CacheRefused(Exception):
    """A cache cannot be packed or unpacked; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFiles:
    """An archive that was written."""

    digest: str
    size: int
    content_bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoots:
    """The directories in which paths of caches begin."""

    workspace: Path
    home: Path

    def of(self, path: str) -> tuple[Path, list[bytes]]:
        """Return where a path begins, and its parts."""
        root = self.home if path.startswith(_HOME) else self.workspace
        return root, [os.fsencode(part) for part in path.removeprefix(_HOME).split("/")]


def pack(
    roots: CacheRoots,
    paths: tuple[str, ...],
    out: BinaryIO,
    *,
    most_bytes: int,
    is_ended: Callable[[], bool] = lambda: False,
) -> PackedFiles:
    """Write what is at the paths as an archive.

    A path without anything is left out.     `most_bytes` is what the files may have together. Raises CacheRefused, and OSError when it cannot be written.
    """
    written = _DigestingFile(out)
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=min(4, os.cpu_count() or 1))
    with (
        compressor.stream_writer(cast("BinaryIO", written), closefd=False) as compressed,
        io.BufferedWriter(cast("io.RawIOBase", compressed), PIECE_BYTES) as archive,
    ):
        packing = _Packing(archive.write, most_bytes, is_ended)
        for number, path in enumerate(paths):
            root, parts = roots.of(path)
            with _reading(path.encode()), opened_directory(root) as folder:
                packing.take_path(folder, parts, str(number).encode())
        if not packing.files:
            raise CacheRefused(
                "there is nothing at its path" if len(paths) == 1 else "there is nothing at its paths"
            )
        archive.write(END)
    return PackedFiles(
        digest=written.digest.hexdigest(),
        size=written.size,
        content_bytes=packing.content_bytes,
        files=packing.files,
    )


class _DigestingFile:
    """A file that counts and digests what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest, self.size = hashlib.sha256(), 0

    def write(self, piece: bytes) -> int:
        self._file.write(piece)
        self.digest.update(piece)
        self.size += len(piece)
        return len(piece)


@dataclass(slots=True)
class _Packing:
    """The walk through the paths of one cache."""

    write: Callable[[bytes], object]
    most_bytes: int
    is_ended: Callable[[], bool]
    files: int = 0
    """Everything but directories."""
    names: int = 0
    content_bytes: int = 0

    def take_path(self, folder: int, parts: list[bytes], name: bytes) -> None:
        """Pack what is at the end of these parts under `name`."""
        first, *rest = parts
        try:
            status = os.stat(first, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if rest and not stat.S_ISDIR(status.st_mode):
            raise CacheRefused(f"{shown(first)} is no directory")
        if rest:
            with opened_directory(first, folder) as inner:
                self.take_path(inner, rest, name)
        else:
            self._take(folder, first, name, status, depth=0)

    def _take(self, folder: int, entry: bytes, name: bytes, status: os.stat_result, depth: int) -> None:
        self.names += 1
        if self.names > MAX_NAMES:
            raise CacheRefused(f"it has more than {MAX_NAMES} files and directories")
        if len(name) > MAX_NAME:
            raise CacheRefused(f"{shown(name)} has more than {MAX_NAME} bytes")
        if self.is_ended():
            raise CacheRefused("it took too long, or the job was asked to end")
        with _reading(name):
            if stat.S_ISDIR(status.st_mode):
                self._take_folder(folder, entry, name, depth)
            elif stat.S_ISREG(status.st_mode):
                self._take_file(folder, entry, name)
            elif stat.S_ISLNK(status.st_mode):
                self._take_link(folder, entry, name, status, depth)
            else:
                raise CacheRefused(f"{_within(name)} is no file, directory or link")

    def _take_folder(self, folder: int, entry: bytes, name: bytes, depth: int) -> None:
        if depth == MAX_DEPTH:
            raise CacheRefused(f"{_within(name)} is in more than {MAX_DEPTH} directories")
        with opened_directory(entry, folder) as inner:
            status = os.fstat(inner)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            self._write(header_of(TarMember(FOLDER, name, 0, mode, status.st_mtime_ns)))
            with os.scandir(inner) as listing:
                # One more than may be taken is refused at once.
                entries = sorted(
                    (os.fsencode(each.name) for each, _ in zip(listing, range(MAX_NAMES + 1), strict=False))
                )
            for each in entries:
                below = os.stat(each, dir_fd=inner, follow_symlinks=False)
                self._take(inner, each, name + b"/" + each, below, depth + 1)

    def _take_link(self, folder: int, entry: bytes, name: bytes, status: os.stat_result, depth: int) -> None:
        target = os.readlink(entry, dir_fd=folder)
        if not stays_within(target, depth - 1):
            raise CacheRefused(f"{_within(name)} is a link to {shown(target)}, which leads out of the cache")
        self.files += 1
        self._write(header_of(TarMember(LINK, name, 0, 0o777, status.st_mtime_ns, target)))

    def _take_file(self, folder: int, entry: bytes, name: bytes) -> None:
        try:
            with opened_file(folder, entry, name) as file:
                self._take_opened(file, name)
        except NoCollection as error:
            # It has become something else.
            raise CacheRefused(error.why.detail) from None

    def _take_opened(self, file: int, name: bytes) -> None:
        before = os.fstat(file)
        self.content_bytes += before.st_size
        self.files += 1
        if self.content_bytes > self.most_bytes:
            raise CacheRefused(
                f"its files have more than {self.most_bytes // 1024**2} MiB, which a cache may have (CACHE_MAX_MIB)"
            )
        mode = stat.S_IMODE(before.st_mode) & 0o777
        self._write(header_of(TarMember(FILE, name, before.st_size, mode, before.st_mtime_ns)))
        left = before.st_size
        while left:
            piece = os.read(file, min(left, PIECE_BYTES))
            if not piece or self.is_ended():
                raise CacheRefused(
                    "it took too long, or the job was asked to end"
                    if piece
                    else f"{_within(name)} became shorter while it was read"
                )
            self._write(piece)
            left -= len(piece)
        after = os.fstat(file)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise CacheRefused(f"{_within(name)} changed while it was read")
        self._write(padding(before.st_size))

    def _write(self, piece: bytes) -> None:
        try:
            self.write(piece)
        except zstandard.ZstdError as error:
            raise CacheRefused(f"it cannot be compressed: {error}") from None


def stays_within(target: bytes, depth: int) -> bool:
    """Return whether a link leads to something in its cache.

    It is in so many directories below the path of the cache.     Only its first parts may be `..`: behind another link they would lead elsewhere than their text says. The link itself
    may be what the path names (depth -1); then it may lead nowhere.
    """
    parts = target.split(b"/")
    if target.startswith(b"/") or not target or depth < 0:
        return False
    upward = next((number for number, part in enumerate(parts) if part != b".."), len(parts))
    return upward <= depth and b".." not in parts[upward:]


def _within(name: bytes) -> str:
    """Return a name for people, without the number of its path."""
    return shown(name.partition(b"/")[2]) or "its path"


@contextmanager
def _reading(name: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise CacheRefused(f"{_within(name)} cannot be read: {error.strerror}") from None
