"""Collect the files of one artifact from what a job has left into an archive.

The archive is a plain tar with sorted names, without times and owners, so equal files make equal archives, wherever the
job ran. Where its files are and how they are opened is for `sources`.
"""

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from solstice_common.values.globs import compiled, plain_parts
from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason
from solstice_orchestrator.git.failures import is_machine
from solstice_orchestrator.worker.artifacts.sources import (
    MAX_ENTRIES,
    ArtifactSource,
    NoCollection,
    NotCollected,
    SourceFolder,
    refused,
    shown,
)

MAX_FILES: Final = 20_000
"""Files of one artifact."""
MAX_DEPTH: Final = 64
"""How deep directories may be; each is open meanwhile."""
PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """An archive that was written."""

    digest: str
    size: int
    files: int


def collect(
    source: ArtifactSource,
    spec: ArtifactSpec,
    out: BinaryIO,
    *,
    most_bytes: int,
    room_bytes: int,
    is_ended: Callable[[], bool] = lambda: False,
    limit_words: str = "which an artifact may have (ARTIFACT_MAX_MIB)",
) -> CollectedFiles | NotCollected:
    """Write the files of `source` that fit the pattern as an archive to `out`.

    `most_bytes` is what the artifact may have (`limit_words` says by which rule), `room_bytes` what the disk has for it. Once `is_ended` says so, it
    stops. An error that is not the job's doing is ARTIFACT_NOT_STORED; OSError is not raised.
    """
    archive = _Archive(out)
    collection = _Collection(spec, archive, most_bytes, room_bytes, is_ended, limit_words)
    try:
        with reading("."), source() as folder:
            collection.begin(folder)
        archive.end()
    except NoCollection as stopped:
        return stopped.why
    if not collection.files:
        return NotCollected(
            reason=Reason.ARTIFACT_REFUSED, detail=f"no file of the workspace fits {spec.path!r}"
        )
    return CollectedFiles(digest=archive.digest, size=archive.size, files=collection.files)


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
            raise NoCollection(Reason.ARTIFACT_NOT_STORED, f"writing it failed: {error.strerror}") from None
        self._digest.update(piece)
        self.size += len(piece)


@dataclass(slots=True)
class _Collection:
    """The walk through one source."""

    spec: ArtifactSpec
    archive: _Archive
    most_bytes: int
    room_bytes: int
    is_ended: Callable[[], bool]
    limit_words: str
    files: int = 0
    entries: int = field(default=0, init=False)

    def begin(self, folder: SourceFolder) -> None:
        """Walk from where the pattern's first special character stands."""
        plain = plain_parts(self.spec.path)
        has_pattern = "/".join(plain) != self.spec.path
        self._descend(folder, b"", [os.fsencode(part) for part in plain], has_pattern=has_pattern)

    def _descend(self, folder: SourceFolder, above: bytes, parts: list[bytes], *, has_pattern: bool) -> None:
        if not parts:
            return self._walk(folder, above, MAX_DEPTH, only_fitting=has_pattern)
        name, *below = parts
        path = above + name
        with reading(path):
            mode = folder.mode(name)
            if mode is None:
                return None
            if stat.S_ISDIR(mode):
                with folder.folder(name) as inner:
                    return self._descend(inner, path + b"/", below, has_pattern=has_pattern)
            if not below and not has_pattern:
                return self._take(folder, name, path)
            if stat.S_ISLNK(mode):
                raise refused(path, "is a symbolic link")
        return None

    def _walk(self, folder: SourceFolder, above: bytes, depth: int, *, only_fitting: bool) -> None:
        with reading(above):
            names = sorted(folder.names(MAX_ENTRIES + 1 - self.entries))
        self.entries += len(names)
        if self.entries > MAX_ENTRIES:
            raise NoCollection(
                Reason.ARTIFACT_REFUSED, f"more than {MAX_ENTRIES} names would have to be looked at"
            )
        pattern = compiled(self.spec.path)
        for name, is_directory in names:
            path = above + name
            if is_directory:
                if not depth:
                    raise refused(path, f"is in more than {MAX_DEPTH} directories")
                with reading(path), folder.folder(name) as inner:
                    self._walk(inner, path + b"/", depth - 1, only_fitting=only_fitting)
            elif not only_fitting or pattern.fullmatch(os.fsdecode(path)):
                self._take(folder, name, path)

    def _take(self, folder: SourceFolder, name: bytes, path: bytes) -> None:
        """Add a file to the archive."""
        if self.files == MAX_FILES:
            raise NoCollection(
                Reason.ARTIFACT_REFUSED, f"it has more than {MAX_FILES} files; let a step pack them"
            )
        self.files += 1
        with reading(path), folder.file(name, path) as file:
            self._check_size(path, file.size)
            self.archive.add(path, file.size, executable=file.is_executable)
            left = file.size
            while left:
                self._check_ended()
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise refused(path, "became shorter while it was read")
                self.archive.write(piece)
                left -= len(piece)
            if file.has_changed():
                raise refused(path, "changed while it was read")
            self.archive.pad()

    def _check_size(self, path: bytes, size: int) -> None:
        """Stop before reading a file that is too large, also a sparse one."""
        self._check_ended()
        total = self.archive.size + size
        if total > self.most_bytes:
            raise refused(
                path,
                f"makes it larger than {self.most_bytes // 1024**2} MiB, {self.limit_words}",
            )
        if total > self.room_bytes:
            raise NoCollection(
                Reason.ARTIFACT_NOT_STORED,
                "the disk of ARTIFACT_DIRECTORY would have less room left than DISK_RESERVE_MIB says",
            )

    def _check_ended(self) -> None:
        if self.is_ended():
            raise NoCollection(Reason.CANCEL_REQUESTED, "the job was asked to end")


@contextmanager
def reading(path: bytes | str) -> Iterator[None]:
    """Make an error of reading the workspace the job's failure, unless the machine lacks something."""
    try:
        yield
    except OSError as error:
        reason = Reason.ARTIFACT_NOT_STORED if is_machine(error) else Reason.ARTIFACT_REFUSED
        name = path if isinstance(path, str) else shown(path)
        raise NoCollection(reason, f"{name} cannot be read: {error.strerror}") from None
