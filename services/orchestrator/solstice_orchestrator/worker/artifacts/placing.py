"""Place the files of a tar archive into a directory.

The archive is hostile: plain files and directories below the directory, once each, within limits, or
it is refused. The directory is hostile, too: a checkout may have symbolic links anywhere, so each directory is opened
from the one above it, and none of them is followed. A plain file or link in the place of a file is replaced.

An archive is read once, from its beginning to its end, so it may come from a stream. What was placed before it turned out
to be wrong stays: the caller uses nothing of a directory whose placing failed.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

from solstice_orchestrator.worker.artifacts.sources import shown
from solstice_orchestrator.worker.artifacts.tar_headers import (
    BLOCK,
    KINDS,
    LONG_NAME,
    BadHeader,
    TarHeader,
    read_header,
)

MAX_DEPTH: Final = 64
"""How deep directories may be; each of one path is open meanwhile."""
MAX_NAME: Final = 255
MAX_PATH: Final = 4096
PIECE_BYTES: Final = 1024 * 1024
_FOLDER: Final = b"5"
"""The type of a directory."""
_HEADER_BYTES: Final = 3 * BLOCK + MAX_PATH + BLOCK
"""The most that an entry has besides its content: two headers, a long name, and what fills its last block."""
_ENDING_BYTES: Final = 1024 * 1024
"""The most that may follow the last entry: tar fills its last record with zeros."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.EPERM})
"""What the kernel says of a name that is there already and is something else."""


class Obstacle(Enum):
    """Who can change that an archive was not placed."""

    ARCHIVE = auto()
    """It is damaged, or none that we place; or its digest is another one."""
    TOO_LARGE = auto()
    """It has more files or bytes than it may."""
    IN_THE_WAY = auto()
    """The directory has something else where a file or directory belongs."""
    ENDED = auto()
    """The caller wanted it to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """Why an archive was not placed; of its files some may be there."""

    obstacle: Obstacle
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFiles:
    """An archive all of whose files are in their place."""

    files: int
    content_bytes: int
    """Of all files."""
    digest: str
    """SHA-256 of the archive, in hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingLimits:
    """What an archive may have."""

    most_bytes: int
    """Of all files together."""
    most_files: int
    """Files and directories."""


class ArchiveStream(Protocol):
    """What an archive is read from.

    It may return less than it could, and nothing at its end alone.
    """

    def read(self, most: int, /) -> bytes: ...


def place_files(
    archive: ArchiveStream,
    directory: Path,
    *,
    limits: PlacingLimits,
    into: str = "",
    digest: str | None = None,
    is_ended: Callable[[], bool] = lambda: False,
) -> PlacedFiles | NotPlaced:
    """Place all files of `archive` below `directory`, or below its subdirectory `into`; blocks.

    `directory` itself may be reached by links, `into` may not. It is made if it is not there. With a `digest`
    (SHA-256), an archive with another one is not placed. Once `is_ended` says so, it stops within a piece of a
    file. Raises OSError when the machine lacks something, such as room, and what reading the archive raises.
    """
    stopped: NotPlaced
    reader = _Reader(archive, limits, is_ended)
    placing = _Placing(reader, limits)
    try:
        placing.begin(directory, into)
        placing.place_all()
        reader.read_rest()
    except _Stopped as error:
        stopped = error.why
    except BadHeader as error:
        stopped = NotPlaced(
            obstacle=Obstacle.ARCHIVE, detail=f"it is no archive: {error} (byte {reader.position})"
        )
    else:
        if digest not in {None, reader.digest}:
            return NotPlaced(
                obstacle=Obstacle.ARCHIVE, detail=f"its SHA-256 is {reader.digest} instead of {digest}"
            )
        return PlacedFiles(files=placing.files, content_bytes=placing.content_bytes, digest=reader.digest)
    finally:
        placing.close()
    return stopped


class _Stopped(Exception):
    """The placing ended too early."""

    def __init__(self, obstacle: Obstacle, detail: str) -> None:
        super().__init__(detail)
        self.why = NotPlaced(obstacle=obstacle, detail=detail)


class _Reader:
    """Reads an archive piece by piece, and digests it."""

    def __init__(self, archive: ArchiveStream, limits: PlacingLimits, is_ended: Callable[[], bool]) -> None:
        self._archive, self._is_ended = archive, is_ended
        self._most = limits.most_bytes + limits.most_files * _HEADER_BYTES + _ENDING_BYTES
        self._digest = hashlib.sha256()
        self.position = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def piece(self, most: int) -> bytes:
        """Return the next bytes, at least one unless the archive ends here."""
        if self._is_ended():
            raise _Stopped(Obstacle.ENDED, "it was to stop")
        piece = self._archive.read(min(most, PIECE_BYTES))
        self._digest.update(piece)
        self.position += len(piece)
        if self.position > self._most:
            raise _Stopped(Obstacle.TOO_LARGE, f"it is longer than {self._most} bytes")
        return piece

    def exactly(self, size: int) -> bytes:
        """Return so many bytes, for small sizes alone."""
        pieces = list[bytes]()
        while size:
            piece = self.piece(size)
            if not piece:
                raise BadHeader("it is cut off")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def header(self) -> TarHeader | None:
        """Return the next header; None where the archive ends."""
        first = self.piece(BLOCK)
        if not first:
            return None
        return read_header(first + self.exactly(BLOCK - len(first)))

    def padding(self, size: int) -> None:
        """Read what fills the last block of so many bytes."""
        self.exactly(-size % BLOCK)

    def read_rest(self) -> None:
        """Read the zeros behind the last entry."""
        while piece := self.piece(PIECE_BYTES):
            if piece.strip(b"\0"):
                raise BadHeader("something follows its end")


@dataclass(slots=True)
class _Placing:
    """The way through one archive."""

    reader: _Reader
    limits: PlacingLimits
    files: int = 0
    content_bytes: int = 0
    entries: int = 0
    seen: set[bytes] = field(default_factory=set)
    """Digests of the paths, so that long ones take no more memory."""
    opened: list[int] = field(default_factory=list)
    """The directory, and those above the last file."""
    path: list[bytes] = field(default_factory=list)
    """The names of these, without the first."""

    def begin(self, directory: Path, into: str) -> None:
        """Open the directory that the names of the archive begin in."""
        parts = [os.fsencode(part) for part in into.split("/")] if into else []
        if not all(map(_is_name, parts)):
            raise ValueError(f"{into!r} is no path below a directory")
        self.opened.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._enter(parts)
        top = self.opened.pop()
        self.close()
        self.opened, self.path = [top], []

    def close(self) -> None:
        while self.opened:
            os.close(self.opened.pop())

    def place_all(self) -> None:
        long_name: bytes | None = None
        while header := self.reader.header():
            if header.type == LONG_NAME and long_name is None:
                if header.size > MAX_PATH + 1:
                    raise BadHeader("a name is longer than paths are")
                long_name = self.reader.exactly(header.size).partition(b"\0")[0]
                self.reader.padding(header.size)
                continue
            self._place(header if long_name is None else header._replace(name=long_name))
            long_name = None
        if long_name is not None:
            raise BadHeader("it is cut off")

    def _place(self, header: TarHeader) -> None:
        if header.type != _FOLDER and KINDS.get(header.type) != stat.S_IFREG:
            raise _Stopped(Obstacle.ARCHIVE, f"{shown(header.name)} is neither a plain file nor a directory")
        parts = _parts(header)
        self._count(header)
        if header.type == _FOLDER:
            if header.size:
                raise BadHeader("a directory with a size")
            return self._enter(parts)
        *above, name = parts
        self._enter(above)
        self._write(name, header)
        return self.reader.padding(header.size)

    def _count(self, header: TarHeader) -> None:
        self.entries += 1
        if self.entries > self.limits.most_files:
            raise _Stopped(
                Obstacle.TOO_LARGE, f"it has more than {self.limits.most_files} files and directories"
            )
        self.content_bytes += header.size
        if self.content_bytes > self.limits.most_bytes:
            raise _Stopped(
                Obstacle.TOO_LARGE, f"its files have more than {self.limits.most_bytes} bytes together"
            )
        path = hashlib.blake2b(header.name.rstrip(b"/"), digest_size=16).digest()
        if path in self.seen:
            raise _Stopped(Obstacle.ARCHIVE, f"{shown(header.name)} is in it twice")
        self.seen.add(path)

    def _enter(self, parts: Sequence[bytes]) -> None:
        """Let the last opened directory be the one with this path."""
        same = 0
        while same < min(len(parts), len(self.path)) and parts[same] == self.path[same]:
            same += 1
        while len(self.path) > same:
            os.close(self.opened.pop())
            self.path.pop()
        for part in parts[same:]:
            self.opened.append(self._opened_directory(part))
            self.path.append(part)

    def _opened_directory(self, name: bytes) -> int:
        above = self.opened[-1]
        try:
            try:
                return os.open(name, _DIRECTORY, dir_fd=above)
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=above)
                self.entries += 1
                return os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            raise self._in_the_way(error, name, "is no directory, which belongs there") from None

    def _write(self, name: bytes, header: TarHeader) -> None:
        file, left = self._new_file(name, header.mode), header.size
        try:
            while left:
                piece = memoryview(self.reader.piece(left))
                if not piece:
                    raise BadHeader("it is cut off")
                left -= len(piece)
                while piece:
                    piece = piece[os.write(file, piece) :]
        finally:
            os.close(file)
        self.files += 1

    def _new_file(self, name: bytes, mode: int) -> int:
        above, permissions = self.opened[-1], 0o755 if mode & stat.S_IXUSR else 0o644
        try:
            try:
                return os.open(name, _NEW, permissions, dir_fd=above)
            except FileExistsError:
                os.unlink(name, dir_fd=above)
                return os.open(name, _NEW, permissions, dir_fd=above)
        except OSError as error:
            raise self._in_the_way(error, name, "is a directory, where a file belongs") from None

    def _in_the_way(self, error: OSError, name: bytes, what: str) -> Exception:
        """Return what an error of the kernel says about the directory, or the error itself."""
        if error.errno not in _IN_THE_WAY:
            return error
        return _Stopped(Obstacle.IN_THE_WAY, f"{shown(b'/'.join((*self.path, name)))} {what}")


def _parts(header: TarHeader) -> Sequence[bytes]:
    """Return the parts of a path that stays below the directory."""
    parts = header.name.split(b"/")
    if header.type == _FOLDER and parts[-1:] == [b""]:
        parts.pop()
    if not parts or len(header.name) > MAX_PATH or not all(map(_is_name, parts)):
        raise _Stopped(Obstacle.ARCHIVE, f"{shown(header.name)} is no path below the directory")
    if len(parts) > MAX_DEPTH:
        raise _Stopped(Obstacle.ARCHIVE, f"{shown(header.name)} is in more than {MAX_DEPTH} directories")
    return parts


def _is_name(part: bytes) -> bool:
    return part not in {b"", b".", b".."} and len(part) <= MAX_NAME
