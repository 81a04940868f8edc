"""Writes the files of a small checkout, in the orchestrator and in forked supervisors.

With the standard library alone, since a process without our packages loads it.

Git's index names the inode and the times of each file, and is corrected in each copy: commands that trust the index,
such as `git diff-index`, would take all files for changed ones. Its format: git-scm.com/docs/index-format.
"""

import hashlib
import json
import marshal
import os
import select
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

INDEX: Final = b".git/index"
_TIMES_AND_INODE: Final = struct.Struct(">6I")
_OWNER_AND_SIZE: Final = struct.Struct(">3I")
_OWNER_OFFSET: Final = 28
_LOW_BITS: Final = 0xFFFFFFFF
_LENGTH: Final = struct.Struct(">I")
_PIECE_BYTES: Final = 65536
_UNWRITTEN: Final = b"unwritten "


class CheckoutFile(NamedTuple):
    """A file, symbolic link or directory of a checkout."""

    name: bytes
    """Below the checkout."""
    mode: int
    """With the type: a plain file, a symbolic link or a directory."""
    content: bytes = b""


class CheckoutFiles(NamedTuple):
    """All files of a small checkout."""

    files: Sequence[CheckoutFile]
    """Each directory before what is in it; without the index."""
    git_index: bytes
    index_mode: int
    index_entries: Sequence[tuple[int, bytes]]
    """Where in the index each file stands."""
    digest: str
    """The name of the hash at the index's end."""

    def packed(self) -> bytes:
        """Return these as one piece, for `write_checkout` of the same Python."""
        return marshal.dumps(
            ([tuple(file) for file in self.files], *self[1:3], list(self.index_entries), self.digest)
        )


def write_checkout(packed: bytes, directory: str, before_each: Callable[[], object] = lambda: None) -> None:
    """Write the checkout into the empty directory; raises OSError.

    `before_each` is called before each file, and may raise something else to end this.
    """
    files, index, index_mode, index_entries, digest = marshal.loads(packed)  # noqa: S302  we have packed it ourselves
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode, content in files:
            before_each()
            _write_file(top, name, mode, content)
        _write_file(top, INDEX, index_mode, _corrected(top, index, index_entries, digest))
    except OSError as error:
        # With the name as people write it.
        name = os.fsdecode(error.filename) if error.filename else directory
        raise OSError(error.errno, error.strerror, name) from None
    finally:
        os.close(top)


def _corrected(top: int, index: bytes, entries: Sequence[tuple[int, bytes]], digest: str) -> bytes:
    """Return the index with the properties of the files that were written."""
    corrected = bytearray(index)
    for offset, name in entries:
        now = os.stat(name, dir_fd=top, follow_symlinks=False)
        times = (*divmod(now.st_ctime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
        for layout, at_byte, numbers in (
            (_TIMES_AND_INODE, offset, (*times, now.st_dev, now.st_ino)),
            (_OWNER_AND_SIZE, offset + _OWNER_OFFSET, (now.st_uid, now.st_gid, now.st_size)),
        ):
            layout.pack_into(corrected, at_byte, *(number & _LOW_BITS for number in numbers))
    checksum = hashlib.new(digest, usedforsecurity=False)
    checksum.update(corrected[: -checksum.digest_size])
    corrected[-checksum.digest_size :] = checksum.digest()
    return bytes(corrected)


def _write_file(top: int, name: bytes, mode: int, content: bytes) -> None:
    """Write the file below the open directory.

    With as few system calls as possible: in a thread, each of them may have to wait for the interpreter.
    """
    permissions = stat.S_IMODE(mode)
    if stat.S_ISREG(mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(name, flags, permissions, dir_fd=top)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
    elif stat.S_ISDIR(mode):
        os.mkdir(name, permissions, dir_fd=top)
    else:
        os.symlink(content, name, dir_fd=top)


def sent(packed: bytes) -> bytes:
    """Return what a supervisor reads before its plan, to write the checkout."""
    return _LENGTH.pack(len(packed)) + packed


def write_received(control: int, verdict: int, directory: str) -> bool:
    """Write the checkout that comes through the control pipe; return whether that succeeded.

    The directory is empty. Otherwise the verdict pipe gets the reason, as one line. It is written before any process of the job runs, so no job
    can forge it. When the orchestrator is gone, this ends before the next file: its successor removes the directory.
    """
    watched = select.poll()
    watched.register(control, 0)

    def check() -> None:
        if watched.poll(0):
            raise EOFError

    try:
        (length,) = _LENGTH.unpack(_read(control, _LENGTH.size))
        write_checkout(_read(control, length), directory, check)
    except EOFError:
        return False
    except OSError as error:
        reason = {"errno": error.errno, "text": error.strerror, "file": error.filename}
        os.write(verdict, _UNWRITTEN + json.dumps(reason).encode() + b"\n")
        return False
    return True


def reason_of(line: bytes) -> OSError | None:
    """Return why a supervisor could not write its checkout, if its first line says so."""
    if not line.startswith(_UNWRITTEN):
        return None
    reason = json.loads(line.removeprefix(_UNWRITTEN))
    return OSError(reason["errno"], reason["text"], reason["file"])


def _read(pipe: int, length: int) -> bytes:
    """Return so many bytes and no more: the plan follows.

    Raises EOFError when the pipe is closed before.
    """
    pieces = list[bytes]()
    while length:
        piece = os.read(pipe, min(length, _PIECE_BYTES))
        if not piece:
            raise EOFError
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
