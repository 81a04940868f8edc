"""Holds the files of a small checkout, and writes them into an empty directory.

Git's index names the inode and the times of each file, and is corrected in each copy: commands that trust the index,
such as `git diff-index`, would take all files for changed ones.

The format of the index: git-scm.com/docs/index-format.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_ENTRIES: Final = 256
"""The most files and directories of a small checkout, those of its repository included."""
MAX_CHECKOUT_BYTES: Final = 1024**2
ENTRY_BYTES: Final = 512
"""What is counted for each file and directory beside its content."""
INDEX: Final = ".git/index"
INDEX_HEADER: Final = struct.Struct(">4sII")
INDEX_ID_OFFSET: Final = 40
"""Where in an entry of the index the object's id stands."""
_TIMES_AND_INODE: Final = struct.Struct(">6I")
_OWNER_AND_SIZE: Final = struct.Struct(">3I")
_OWNER_OFFSET: Final = 28
_LOW_BITS: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class CheckoutFile:
    """A file, symbolic link or directory of a checkout."""

    name: str
    """Below the checkout."""
    mode: int
    """With the type: a plain file, a symbolic link or a directory."""
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class CheckoutCopy:
    """A whole small checkout."""

    files: Sequence[CheckoutFile]
    """Each directory before what is in it; without the index."""
    index: bytes
    index_mode: int
    index_entries: Sequence[tuple[int, str]]
    """Where in the index each file stands."""
    digest: str
    """The name of the hash at the index's end."""
    size_bytes: int


def next_entry_at(at: int, end_of_name: int) -> int:
    """Return where the entry after the one at `at` begins.

    Each entry is followed by one to eight NULs, up to a multiple of eight.
    """
    return at + ((end_of_name - at) // 8 + 1) * 8


def write_copy(copy: CheckoutCopy, directory: str) -> None:
    """Write the checkout into the empty directory; raises OSError."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for file in copy.files:
            _write_file(top, file)
        written = {name: os.stat(name, dir_fd=top, follow_symlinks=False) for _, name in copy.index_entries}
        _write_file(top, CheckoutFile(INDEX, copy.index_mode, _index(copy, written)))
    finally:
        os.close(top)


def _index(copy: CheckoutCopy, written: Mapping[str, os.stat_result]) -> bytes:
    """Return the index of a copy whose files have these properties."""
    index = bytearray(copy.index)
    for offset, name in copy.index_entries:
        now = written[name]
        times = (*divmod(now.st_ctime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
        for layout, at_byte, numbers in (
            (_TIMES_AND_INODE, offset, (*times, now.st_dev, now.st_ino)),
            (_OWNER_AND_SIZE, offset + _OWNER_OFFSET, (now.st_uid, now.st_gid, now.st_size)),
        ):
            layout.pack_into(index, at_byte, *(number & _LOW_BITS for number in numbers))
    digest = hashlib.new(copy.digest, usedforsecurity=False)
    digest.update(index[: -digest.digest_size])
    index[-digest.digest_size :] = digest.digest()
    return bytes(index)


def _write_file(top: int, file: CheckoutFile) -> None:
    """Write the file below the open directory.

    With as few system calls as possible: in a thread, each of them may have to wait for the interpreter.
    """
    mode = stat.S_IMODE(file.mode)
    if stat.S_ISREG(file.mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(file.name, flags, mode, dir_fd=top)
        try:
            left = memoryview(file.content)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
    elif stat.S_ISDIR(file.mode):
        os.mkdir(file.name, mode, dir_fd=top)
    else:
        os.symlink(os.fsdecode(file.content), file.name, dir_fd=top)
