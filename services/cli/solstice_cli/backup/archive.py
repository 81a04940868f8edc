"""Writes and reads the file of a backup: a ZIP archive with a manifest.

Source: pkware.com/appnote (4.3.6: the directory of a ZIP file stands at its end, so that a cut file has none).
"""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final

import pydantic

from solstice_cli.backup.errors import BackupDamaged
from solstice_cli.backup.manifest import ArchiveMember, BackupManifest

MANIFEST: Final = "manifest.json"
LARGEST_MANIFEST: Final = 16 << 20
BLOCK: Final = 1 << 20
FAST: Final = 1
"""The level of compression: bodies and statuses are compressed already."""
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, KeyError, RuntimeError)
"""Errors of the library for a file that is cut off or was changed.

A changed head of a member may name a compression it lacks (NotImplementedError) or encryption (RuntimeError); KeyError
is a member that is not there.
"""

Report = Callable[[int], None]
"""Called with the number of bytes that were handled."""


class MemberWriter:
    """Writes one member, and counts and digests it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class ArchiveWriter:
    """Writes the members of a backup one after the other, and its manifest last."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    @classmethod
    @contextmanager
    def open(cls, file: BinaryIO) -> Iterator["ArchiveWriter"]:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=FAST) as archive:
            yield cls(archive)

    @contextmanager
    def member(self, name: str) -> Iterator[MemberWriter]:
        with self._archive.open(name, "w", force_zip64=True) as file:
            yield MemberWriter(file)

    def finish(self, manifest: BackupManifest) -> None:
        self._archive.writestr(MANIFEST, manifest.model_dump_json(indent=2))


class ArchiveReader:
    """Reads a backup, and believes only what its manifest has the digest of."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, manifest: BackupManifest) -> None:
        self._path, self._archive = path, archive
        self.manifest = manifest

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["ArchiveReader"]:
        """Open it and read its manifest. Raises BackupDamaged and OSError."""
        with ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            with _reading(path):
                archive = opened.enter_context(zipfile.ZipFile(file))
                manifest = _manifest(path, archive)
            yield cls(path, archive, manifest)

    def verify(self, report: Report) -> None:
        """Read every member and compare its digest; BackupDamaged when one differs."""
        for database in self.manifest.databases:
            for member in database.members:
                for block in self.blocks(member):
                    report(len(block))

    def blocks(self, member: ArchiveMember) -> Iterator[bytes]:
        """Yield the bytes of a member; BackupDamaged when they are others."""
        digest, size = hashlib.sha256(), 0
        with ExitStack() as opened:
            with _reading(self._path):
                file = opened.enter_context(self._archive.open(member.name))
            while block := self._block(file):
                size += len(block)
                if size > member.size:
                    break
                digest.update(block)
                yield block
        if size != member.size or digest.hexdigest() != member.sha256:
            raise BackupDamaged(self._path, f"{member.name} is not what its manifest says")

    def _block(self, file: IO[bytes]) -> bytes:
        with _reading(self._path):
            return file.read(BLOCK)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise the library's errors as damage of the file.

    Only reading stands inside: a KeyError of what uses the content says nothing about the file.
    """
    try:
        yield
    except _DAMAGE as error:
        raise BackupDamaged(path, f"it was cut off or changed ({error})") from error


def _manifest(path: Path, archive: zipfile.ZipFile) -> BackupManifest:
    if archive.getinfo(MANIFEST).file_size > LARGEST_MANIFEST:
        raise BackupDamaged(path, "its manifest is too large")
    try:
        return BackupManifest.model_validate_json(archive.read(MANIFEST))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BackupDamaged(
            path, f"this Solstice CI cannot read its manifest ({place}: {first['msg']})"
        ) from error
