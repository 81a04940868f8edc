"""The directory of artifacts: archives named by their digests, whole or not there.

Several orchestrators may share it. A file's time of modification is the moment until which it is needed, so that it
can be removed without a register of who needs it.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from solstice_common.runtime.private_paths import OWNER_ONLY, make_private_directory, private_opener

INCOMING_SECONDS: Final = 86_400.0
"""An archive that nothing was added to for so long has no writer any more."""
_ARCHIVES: Final = "sha256"
_INCOMING: Final = "incoming"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingArchive:
    """An archive that is being written."""

    path: Path
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class ArtifactArchives:
    """One directory; its methods block."""

    path: Path

    def prepare(self) -> None:
        """Make the directory. Raises OSError."""
        for each in (self.path / _ARCHIVES, self.path / _INCOMING):
            make_private_directory(each)

    @property
    def exists(self) -> bool:
        """Whether it was ever prepared."""
        return (self.path / _ARCHIVES).is_dir() and (self.path / _INCOMING).is_dir()

    def free_bytes(self) -> int:
        """Return how much room its disk has."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    @contextmanager
    def incoming(self) -> Iterator[IncomingArchive]:
        """Open a new archive, which is gone on leaving unless it was placed."""
        path = self.path / _INCOMING / secrets.token_hex(16)
        with open(path, "xb", opener=private_opener) as file:
            try:
                yield IncomingArchive(path=path, file=file)
            finally:
                path.unlink(missing_ok=True)

    def place(self, archive: IncomingArchive, digest: str, until: float) -> None:
        """Give an incoming archive its name, once it is on the disk. Raises OSError.

        One that is there already stays, at least until then.
        """
        archive.file.flush()
        os.fsync(archive.file.fileno())
        path = self._path(digest)
        make_private_directory(path.parent)
        with self._locked():
            with contextlib.suppress(FileNotFoundError):
                known = path.stat()
                if known.st_size == os.fstat(archive.file.fileno()).st_size:
                    os.utime(path, (until, max(until, known.st_mtime)))
                    return
            archive.path.replace(path)
            os.utime(path, (until, until))
            _flush(path.parent)

    def find(self, digest: str) -> Path | None:
        """Return the file of an archive; None when it is not here."""
        path = self._path(digest)
        return path if path.is_file() else None

    def expired(self, now: float, limit: int) -> Sequence[str]:
        """Return digests of archives that nothing needs any more, as far as the directory says."""
        return list(islice(self._expired(now), limit))

    def _expired(self, now: float) -> Iterator[str]:
        with os.scandir(self.path / _ARCHIVES) as folders:
            for folder in folders:
                with os.scandir(folder.path) as files:
                    for file in files:
                        with contextlib.suppress(FileNotFoundError):
                            if file.stat().st_mtime < now:
                                yield file.name

    def remove(self, digests: Sequence[str], now: float) -> int:
        """Remove those of the archives that are still not needed, and return how many."""
        removed = 0
        for digest in digests:
            path = self._path(digest)
            with self._locked(), contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now:
                    path.unlink()
                    removed += 1
        return removed

    def need(self, digests: Sequence[str], until: float) -> None:
        """Keep archives that are needed after all.

        A copy of the directory may have lost their times.
        """
        for digest in digests:
            with self._locked(), contextlib.suppress(FileNotFoundError):
                os.utime(self._path(digest), (until, until))

    def remove_left(self, now: float) -> int:
        """Remove incoming archives of killed orchestrators, and return how many."""
        removed = 0
        with os.scandir(self.path / _INCOMING) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime < now - INCOMING_SECONDS:
                        Path(file.path).unlink()
                        removed += 1
        return removed

    def _path(self, digest: str) -> Path:
        return self.path / _ARCHIVES / digest[:2] / digest

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others, also other processes, from placing or removing archives meanwhile."""
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _flush(directory: Path) -> None:
    """Make the names of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
