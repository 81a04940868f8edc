"""Replaces files atomically, small ones under a lock, and detects a replaced file."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from solstice_common.runtime.private_paths import OWNER_ONLY, make_private_directory, private_opener

_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes whenever the file's content may have; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def replace_file(path: Path, content: Callable[[], bytes]) -> None:
    """Write the bytes that `content` returns, under a lock.

    Durable on return, and a reader sees the old file or the new one. Raises OSError.
    """
    make_private_directory(path.parent)
    with _locked(path.with_name(path.name + ".lock")):
        _replace(path, content())


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a private file that appears whole and durable, or not at all.

    What is no plain file, such as a pipe, is written as it is. Raises OSError with a file's name.
    """
    is_plain = path.is_file() or not path.exists()
    fresh = path.with_name(f"{path.name}.part") if is_plain else path
    try:
        with open(fresh, "wb", opener=private_opener) as file:
            yield file
            file.flush()
            if is_plain:
                os.fsync(file.fileno())
        if is_plain:
            fresh.replace(path)
            _sync_folder(path.parent)
    except OSError as error:
        if error.filename in {None, str(fresh)}:
            error.filename = str(path)
        raise
    finally:
        if is_plain:
            fresh.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        _write_beside(path, fresh, content)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have the names in it on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_beside(path: Path, fresh: Path, content: bytes) -> None:
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "wb") as file:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            # The file keeps its owner and mode: root may write it for a service that runs as another user, and two
            # services with users of their own may share the file through a group.
            before = path.stat()
            os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), OWNER_ONLY | (before.st_mode & _OTHERS_READ))
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
