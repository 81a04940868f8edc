"""Collect the files of one artifact from a workspace into an archive.

The workspace is hostile: a process that escaped may change it meanwhile. Directories and files are opened one from
another, never by a path that could lead elsewhere, and no link is followed. The archive is a plain tar with sorted
names, without times and owners, so equal files make equal archives.
"""

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from solstice_common.values.globs import compiled
from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason
from solstice_orchestrator.git.failures import is_machine

MAX_FILES: Final = 20_000
"""Files of one artifact."""
MAX_ENTRIES: Final = 200_000
"""Names that are looked at for one artifact."""
MAX_DEPTH: Final = 64
"""How deep directories may be; each is open meanwhile."""
MAX_SHOWN: Final = 200
PIECE_BYTES: Final = 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SPECIAL: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """An archive that was written."""

    digest: str
    size: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCollected:
    """Why there is no archive; `reason` says who can change that."""

    reason: Reason
    detail: str


class _StoppedError(Exception):
    """The collection ended without an archive."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.why = NotCollected(reason=reason, detail=detail)


def collect(
    source: Path,
    spec: ArtifactSpec,
    out: BinaryIO,
    *,
    most_bytes: int,
    room_bytes: int,
    is_ended: Callable[[], bool] = lambda: False,
) -> CollectedFiles | NotCollected:
    """Write the files below `source` that fit the pattern as an archive to `out`.

    `most_bytes` is what the artifact may have, `room_bytes` what the disk has for it. Once `is_ended` says so, it
    stops. An error that is not the job's doing is ARTIFACT_NOT_STORED; OSError is not raised.
    """
    archive = _Archive(out)
    collection = _Collection(spec, archive, most_bytes, room_bytes, is_ended)
    try:
        with _reading("."), _opened_directory(source) as directory:
            collection.begin(directory)
        archive.end()
    except _StoppedError as stopped:
        return stopped.why
    if not collection.files:
        return NotCollected(
            reason=Reason.ARTIFACT_REFUSED, detail=f"no file of the workspace fits {spec.path!r}"
        )
    return CollectedFiles(digest=archive.digest, size=archive.size, files=collection.files)


def shown(path: bytes) -> str:
    """Return a path for people, also when its bytes are no text."""
    text = path.decode("utf-8", "backslashreplace")
    readable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return readable if len(readable) <= MAX_SHOWN else f"{readable[:MAX_SHOWN]}..."


class _Archive:
    """A tar that is written and digested piece by piece."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def add(self, name: bytes, size: int, *, executable: bool) -> None:
        header = tarfile.TarInfo(os.fsdecode(name))
        header.size, header.mode = size, 0o755 if executable else 0o644
        self.write(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def pad(self) -> None:
        self.write(bytes(-self.size % tarfile.BLOCKSIZE))

    def end(self) -> None:
        self.write(bytes(2 * tarfile.BLOCKSIZE))

    def write(self, piece: bytes) -> None:
        try:
            self._out.write(piece)
        except OSError as error:
            raise _StoppedError(Reason.ARTIFACT_NOT_STORED, f"writing it failed: {error.strerror}") from None
        self._digest.update(piece)
        self.size += len(piece)


@dataclass(slots=True)
class _Collection:
    """The walk through one workspace."""

    spec: ArtifactSpec
    archive: _Archive
    most_bytes: int
    room_bytes: int
    is_ended: Callable[[], bool]
    files: int = 0
    entries: int = field(default=0, init=False)

    def begin(self, directory: int) -> None:
        """Walk from where the pattern's first special character stands."""
        parts = self.spec.path.split("/")
        plain = next((n for n, part in enumerate(parts) if not _SPECIAL.isdisjoint(part)), len(parts))
        self._descend(
            directory, b"", [os.fsencode(part) for part in parts[:plain]], has_pattern=plain < len(parts)
        )

    def _descend(self, directory: int, above: bytes, parts: list[bytes], *, has_pattern: bool) -> None:
        if not parts:
            return self._walk(directory, above, MAX_DEPTH, only_fitting=has_pattern)
        name, *below = parts
        path = above + name
        with _reading(path):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if stat.S_ISDIR(status.st_mode):
                with _opened_directory(name, directory) as inner:
                    return self._descend(inner, path + b"/", below, has_pattern=has_pattern)
            if not below and not has_pattern:
                return self._take(directory, name, path)
            if stat.S_ISLNK(status.st_mode):
                raise _refused(path, "is a symbolic link")
        return None

    def _walk(self, directory: int, above: bytes, depth: int, *, only_fitting: bool) -> None:
        with _reading(above), os.scandir(directory) as listing:
            names = sorted(
                (os.fsencode(each.name), each.is_dir(follow_symlinks=False))
                for each in islice(listing, MAX_ENTRIES + 1 - self.entries)
            )
        self.entries += len(names)
        if self.entries > MAX_ENTRIES:
            raise _StoppedError(
                Reason.ARTIFACT_REFUSED, f"more than {MAX_ENTRIES} names would have to be looked at"
            )
        pattern = compiled(self.spec.path)
        for name, is_directory in names:
            path = above + name
            if is_directory:
                if not depth:
                    raise _refused(path, f"is in more than {MAX_DEPTH} directories")
                with _reading(path), _opened_directory(name, directory) as inner:
                    self._walk(inner, path + b"/", depth - 1, only_fitting=only_fitting)
            elif not only_fitting or pattern.fullmatch(os.fsdecode(path)):
                self._take(directory, name, path)

    def _take(self, directory: int, name: bytes, path: bytes) -> None:
        """Add a file to the archive."""
        if self.files == MAX_FILES:
            raise _StoppedError(
                Reason.ARTIFACT_REFUSED, f"it has more than {MAX_FILES} files; let a step pack them"
            )
        self.files += 1
        with _reading(path), _opened_file(directory, name, path) as content:
            before = os.fstat(content)
            self._check_size(path, before.st_size)
            self.archive.add(path, before.st_size, executable=bool(before.st_mode & stat.S_IXUSR))
            left = before.st_size
            while left:
                self._check_ended()
                piece = os.read(content, min(left, PIECE_BYTES))
                if not piece:
                    raise _refused(path, "became shorter while it was read")
                self.archive.write(piece)
                left -= len(piece)
            if _moment(os.fstat(content)) != _moment(before):
                raise _refused(path, "changed while it was read")
            self.archive.pad()

    def _check_size(self, path: bytes, size: int) -> None:
        """Stop before reading a file that is too large, also a sparse one."""
        self._check_ended()
        total = self.archive.size + size
        if total > self.most_bytes:
            raise _refused(
                path,
                f"makes it larger than {self.most_bytes // 1024**2} MiB, which an artifact may have (ARTIFACT_MAX_MIB)",
            )
        if total > self.room_bytes:
            raise _StoppedError(
                Reason.ARTIFACT_NOT_STORED,
                "the disk of ARTIFACT_DIRECTORY would have less room left than DISK_RESERVE_MIB says",
            )

    def _check_ended(self) -> None:
        if self.is_ended():
            raise _StoppedError(Reason.CANCEL_REQUESTED, "the job was asked to end")


def _moment(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _refused(path: bytes, what: str) -> _StoppedError:
    return _StoppedError(Reason.ARTIFACT_REFUSED, f"{shown(path)} {what}")


@contextmanager
def _reading(path: bytes | str) -> Iterator[None]:
    """Make an error of reading the workspace the job's failure, unless the machine lacks something."""
    try:
        yield
    except OSError as error:
        reason = Reason.ARTIFACT_NOT_STORED if is_machine(error) else Reason.ARTIFACT_REFUSED
        name = path if isinstance(path, str) else shown(path)
        raise _StoppedError(reason, f"{name} cannot be read: {error.strerror}") from None


@contextmanager
def _opened_directory(name: bytes | Path, above: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_file(directory: int, name: bytes, path: bytes) -> Iterator[int]:
    """Open a plain file, and no device or named pipe.

    What it is, is known before it is opened.
    """
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        mode = os.fstat(found).st_mode
        if not stat.S_ISREG(mode):
            raise _refused(path, f"is {_kind(mode)}, and an artifact has plain files alone")
        content = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        yield content
    finally:
        os.close(content)


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory now"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for is_kind, words in kinds if is_kind(mode)), "a device")
