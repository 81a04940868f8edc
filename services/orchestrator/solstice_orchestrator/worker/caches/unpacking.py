"""Unpack the archive of a cache, and place it once its digest is right.

Directories are opened one from another, and links are never followed: neither those of the archive nor those of the checkout.
Nothing of an archive with another digest, or with a member that may not be, comes to its place.
"""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from solstice_orchestrator.worker.artifacts.sources import shown
from solstice_orchestrator.worker.artifacts.tar_headers import BLOCK, BadHeader
from solstice_orchestrator.worker.artifacts.workspace_files import opened_directory
from solstice_orchestrator.worker.caches.cache_tar import (
    EXTENDED,
    FILE,
    FOLDER,
    MAX_EXTENDED,
    MAX_NAME,
    TarMember,
    read_member,
)
from solstice_orchestrator.worker.caches.packing import (
    MAX_DEPTH,
    MAX_NAMES,
    PIECE_BYTES,
    CacheRefused,
    CacheRoots,
    stays_within,
)

LARGEST_WINDOW: Final = 8 * 1024**2
"""Of zstd, which is what an archive makes it allocate. Level 1 has a sixteenth of that."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(
    archive: BinaryIO,
    digest: str,
    roots: CacheRoots,
    paths: tuple[str, ...],
    aside: Path,
    *,
    most_bytes: int,
    is_ended: Callable[[], bool] = lambda: False,
) -> int:
    """Restore an archive, and return how many bytes its files have.

    `aside` is a directory of this attempt that nothing else uses, on the disk of the roots. Raises CacheRefused, and OSError
    when it cannot be read or written. Then nothing of it is at its place, unless that failed on the way there.
    """
    aside.mkdir(mode=0o700)
    source = _DigestedFile(archive, is_ended)
    try:
        with (
            zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).stream_reader(
                cast("BinaryIO", source), read_size=PIECE_BYTES, closefd=False
            ) as plain,
            opened_directory(aside) as top,
        ):
            unpacking = _Unpacking(io.BufferedReader(plain, PIECE_BYTES), top, len(paths), most_bytes)
            try:
                unpacking.run()
            except FileExistsError:
                raise CacheRefused("its archive has a name twice") from None
            finally:
                unpacking.leave_folders()
    except (BadHeader, zstandard.ZstdError) as error:
        raise CacheRefused(f"its archive is damaged: {error}") from None
    source.read_rest()
    if source.digest.hexdigest() != digest:
        raise CacheRefused("its archive is damaged: it has another SHA-256")
    with opened_directory(aside) as top:
        for number, path in enumerate(paths):
            _place(top, str(number).encode(), *roots.of(path))
    return unpacking.content_bytes


class _DigestedFile:
    """Digests what is read of a file."""

    def __init__(self, file: BinaryIO, is_ended: Callable[[], bool]) -> None:
        self._file, self._is_ended = file, is_ended
        self.digest = hashlib.sha256()

    def read(self, most: int) -> bytes:
        if self._is_ended():
            raise CacheRefused("it took too long, or the job was asked to end")
        piece = self._file.read(most)
        self.digest.update(piece)
        return piece

    def read_rest(self) -> None:
        while self.read(PIECE_BYTES):
            pass


@dataclass(slots=True)
class _Unpacking:
    """The members of one archive on their way into a directory."""

    source: io.BufferedReader
    top: int
    paths: int
    most_bytes: int
    content_bytes: int = 0
    _open: list[tuple[bytes, int, TarMember]] = field(default_factory=list, init=False)
    """The directories from the top to the last member's, each with its descriptor."""

    def run(self) -> None:
        for number, member in enumerate(self._members()):
            if number == MAX_NAMES:
                raise CacheRefused(f"its archive has more than {MAX_NAMES} members")
            parts = self._checked(member)
            above = self._folder_of(parts[:-1])
            match member.type:
                case b"5":
                    self._enter(above, parts[-1], member)
                case b"2":
                    if not stays_within(member.target, len(parts) - 2):
                        raise CacheRefused(
                            f"its archive has a link that leads out of it: {shown(member.name)}"
                        )
                    os.symlink(member.target, parts[-1], dir_fd=above)
                    _set_time(parts[-1], member, above)
                case _:
                    self._write(above, parts[-1], member)

    def leave_folders(self, depth: int = 0) -> None:
        """Close the directories below this depth, each with its mode and time."""
        while len(self._open) > depth:
            _, descriptor, member = self._open.pop()
            try:
                # The first stays open for its owner, until it is in its place.
                os.fchmod(descriptor, member.mode | (stat.S_IRWXU if not self._open else 0))
                os.utime(descriptor, ns=(member.mtime_ns, member.mtime_ns))
            finally:
                os.close(descriptor)

    def _checked(self, member: TarMember) -> list[bytes]:
        """Return the parts of a member's name, which begins with the number of its path."""
        parts = member.name.rstrip(b"/").split(b"/") if member.type == FOLDER else member.name.split(b"/")
        first = parts[0]
        if (
            len(member.name) > MAX_NAME
            or not first.isdigit()
            or str(int(first)).encode() != first
            or int(first) >= self.paths
            or any(part in {b"", b".", b".."} or b"\0" in part for part in parts)
        ):
            raise CacheRefused(f"its archive has a name that leads out of it: {shown(member.name)}")
        if len(parts) > MAX_DEPTH + 1:
            raise CacheRefused(f"its archive has more than {MAX_DEPTH} directories in one another")
        return parts

    def _folder_of(self, parts: Sequence[bytes]) -> int:
        """Return the directory of a member, which came before it."""
        same = 0
        for (name, _, _), part in zip(self._open, parts, strict=False):
            if name != part:
                break
            same += 1
        self.leave_folders(same)
        if same < len(parts):
            raise CacheRefused("its archive is damaged: a directory is missing, or comes a second time")
        return self._open[-1][1] if self._open else self.top

    def _enter(self, above: int, name: bytes, member: TarMember) -> None:
        os.mkdir(name, 0o700, dir_fd=above)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        self._open.append((name, descriptor, member))

    def _write(self, above: int, name: bytes, member: TarMember) -> None:
        self.content_bytes += member.size
        if self.content_bytes > self.most_bytes:
            raise CacheRefused(
                f"its files have more than {self.most_bytes // 1024**2} MiB, which a cache may have (CACHE_MAX_MIB)"
            )
        descriptor = os.open(name, _NEW, 0o600, dir_fd=above)
        try:
            left = member.size
            while left:
                piece = self._exactly(min(left, PIECE_BYTES))
                left -= len(piece)
                while piece:
                    piece = piece[os.write(descriptor, piece) :]
            os.fchmod(descriptor, member.mode)
            os.utime(descriptor, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(descriptor)
        self._exactly(-member.size % BLOCK)

    def _members(self) -> Iterator[TarMember]:
        extended = b""
        while member := read_member(self._exactly(BLOCK), extended):
            if member.type == EXTENDED:
                if extended or member.size > MAX_EXTENDED:
                    raise BadHeader("it has a large or a second extended header")
                extended = self._exactly(member.size)
                self._exactly(-member.size % BLOCK)
                continue
            if member.type != FILE and member.size:
                raise BadHeader("a member that is no file has content")
            extended = b""
            yield member

    def _exactly(self, size: int) -> bytes:
        content = self.source.read(size)
        if len(content) != size:
            raise BadHeader("it is cut off")
        return content


def _place(aside: int, name: bytes, root: Path, parts: Sequence[bytes]) -> None:
    """Move what was unpacked to the end of a path.

    A path without anything in the archive stays as it is.
    """
    try:
        status = os.stat(name, dir_fd=aside, follow_symlinks=False)
    except FileNotFoundError:
        return
    with ExitStack() as folders:
        above = folders.enter_context(opened_directory(root))
        for part in parts[:-1]:
            with _in_place(part):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=above)
                above = folders.enter_context(opened_directory(part, above))
        with _in_place(parts[-1]):
            _merge(aside, name, above, parts[-1], is_folder=stat.S_ISDIR(status.st_mode))


def _merge(source: int, name: bytes, target: int, new_name: bytes, *, is_folder: bool) -> None:
    """Move a file, link or directory.

    What is there already is replaced; a directory gets the content of the other one.
    """
    try:
        there = os.stat(new_name, dir_fd=target, follow_symlinks=False).st_mode
    except FileNotFoundError:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        return
    if not is_folder or not stat.S_ISDIR(there):
        if is_folder or stat.S_ISDIR(there):
            raise CacheRefused(f"{shown(new_name)} is {'no' if is_folder else 'a'} directory there")
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        return
    with opened_directory(name, source) as inner, opened_directory(new_name, target) as new_inner:
        with os.scandir(inner) as listing:
            entries = [(os.fsencode(each.name), each.is_dir(follow_symlinks=False)) for each in listing]
        for entry, is_inner in entries:
            _merge(inner, entry, new_inner, entry, is_folder=is_inner)


def _set_time(name: bytes, member: TarMember, folder: int) -> None:
    os.utime(name, ns=(member.mtime_ns, member.mtime_ns), dir_fd=folder, follow_symlinks=False)


@contextmanager
def _in_place(name: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise CacheRefused(f"{shown(name)} is a link or a file there, and no directory") from None
        raise
