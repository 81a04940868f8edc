"""Keeps small checkouts whole, and writes further ones of the same commit without git.

To start git costs more than to write a few files. What git wrote at the first checkout stays in the memory of this
process, where no job can change it. Git's index names the inode and the times of each file, and is corrected in each
copy: commands that trust the index, such as `git diff-index`, would take all files for changed ones.

The format of the index: git-scm.com/docs/index-format.
"""

import asyncio
import hashlib
import os
import stat
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.repository import object_format
from solstice_orchestrator.processes.completion import run_to_completion

MAX_ENTRIES: Final = 256
"""The most files and directories of a checkout that is kept, those of its repository included."""
MAX_CHECKOUT_BYTES: Final = 1024**2
SHARE: Final = 16
"""The part of the object cache's limit that small checkouts may have, in memory."""
MAX_BYTES: Final = 32 * 1024**2
"""The most they may have."""
ENTRY_BYTES: Final = 512
"""What is counted for each file and directory beside its content."""
INDEX: Final = ".git/index"
_HEADER: Final = struct.Struct(">4sII")
_TIMES_AND_INODE: Final = struct.Struct(">6I")
_OWNER_AND_SIZE: Final = struct.Struct(">3I")
_OWNER_OFFSET: Final = 28
_ID_OFFSET: Final = 40
_EXTENDED: Final = 0x4000
_VERSIONS: Final = (2, 3)
_LOW_BITS: Final = 0xFFFFFFFF


class _NotSmall(Exception):
    """The checkout is too large, or has something that is not simply written again."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    """Below the checkout."""
    mode: int
    """With the type: a plain file, a symbolic link or a directory."""
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class _SmallCheckout:
    files: Sequence[_File]
    """Each directory before what is in it; without the index."""
    index: bytes
    index_mode: int
    places: Sequence[tuple[int, str]]
    """Where in the index each file stands."""
    digest: str
    """The name of the hash at the index's end."""
    size_bytes: int


class SmallCheckouts:
    """The small checkouts that were used last, with at most a small part of `cache_max_bytes`."""

    def __init__(self, cache_max_bytes: int) -> None:
        self._max_bytes = min(cache_max_bytes // SHARE, MAX_BYTES)
        self._checkouts: OrderedDict[CommitKey, _SmallCheckout] = OrderedDict()
        self._size_bytes = 0

    async def write(self, key: CommitKey, directory: Path) -> bool:
        """Put the commit's checkout into the empty directory; return whether it was here.

        Raises OSError.
        """
        checkout = self._checkouts.get(key)
        if checkout is None:
            return False
        self._checkouts.move_to_end(key)
        await run_to_completion(asyncio.to_thread(_write, checkout, str(directory)), "small checkout")
        return True

    def keep(self, key: CommitKey, directory: Path) -> None:
        """Keep the checkout in the directory, as git has left it, if it is small."""
        try:
            checkout = _read(str(directory), object_format(key.commit_sha))
        except (_NotSmall, OSError, ValueError, struct.error):
            return
        if key in self._checkouts or checkout.size_bytes > self._max_bytes:
            return
        self._checkouts[key] = checkout
        self._size_bytes += checkout.size_bytes
        while self._size_bytes > self._max_bytes:
            self._size_bytes -= self._checkouts.popitem(last=False)[1].size_bytes


def _read(directory: str, digest: str) -> _SmallCheckout:
    """Read a checkout; raises _NotSmall and OSError.

    An unknown form of index raises ValueError or struct.error.
    """
    files, size_bytes, index = list[_File](), 0, _File(INDEX, 0)
    for file in _files(directory):
        size_bytes += ENTRY_BYTES + len(file.content)
        if size_bytes > MAX_CHECKOUT_BYTES or len(files) > MAX_ENTRIES:
            raise _NotSmall
        if file.name == INDEX:
            index = file
        else:
            files.append(file)
    places = list(_places(index.content, hashlib.new(digest).digest_size))
    if not {name for _, name in places} <= {file.name for file in files if not stat.S_ISDIR(file.mode)}:
        raise _NotSmall
    return _SmallCheckout(tuple(files), index.content, index.mode, places, digest, size_bytes)


def _files(directory: str) -> Iterator[_File]:
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(f"{directory}/{above}") as entries:
            for entry in entries:
                name = above + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    todo.append(f"{name}/")
                    yield _File(name, mode)
                elif stat.S_ISLNK(mode):
                    yield _File(name, mode, os.fsencode(Path(entry.path).readlink()))
                elif stat.S_ISREG(mode):
                    yield _File(name, mode, _content(entry.path))
                else:
                    raise _NotSmall


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return file.read(MAX_CHECKOUT_BYTES + 1)


def _places(index: bytes, digest_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield the offset and the name of each entry of an index."""
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in _VERSIONS:
        raise ValueError(signature, version)
    at = _HEADER.size
    for _ in range(count):
        begin = at + _ID_OFFSET + digest_bytes
        (flags,) = struct.unpack_from(">H", index, begin)
        begin += 4 if flags & _EXTENDED else 2
        end = index.index(b"\0", begin)
        yield at, os.fsdecode(index[begin:end])
        # Each entry is followed by one to eight NULs, up to a multiple of eight.
        at += ((end - at) // 8 + 1) * 8


def _write(checkout: _SmallCheckout, directory: str) -> None:
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        written = {file.name: _write_file(top, file) for file in checkout.files}
        _write_file(top, _File(INDEX, checkout.index_mode, _index(checkout, written)))
    finally:
        os.close(top)


def _index(checkout: _SmallCheckout, written: Mapping[str, os.stat_result]) -> bytes:
    """Return the index of a copy whose files have these properties."""
    index = bytearray(checkout.index)
    for offset, name in checkout.places:
        now = written[name]
        times = (*divmod(now.st_ctime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
        for layout, place, numbers in (
            (_TIMES_AND_INODE, offset, (*times, now.st_dev, now.st_ino)),
            (_OWNER_AND_SIZE, offset + _OWNER_OFFSET, (now.st_uid, now.st_gid, now.st_size)),
        ):
            layout.pack_into(index, place, *(number & _LOW_BITS for number in numbers))
    digest = hashlib.new(checkout.digest, usedforsecurity=False)
    digest.update(index[: -digest.digest_size])
    index[-digest.digest_size :] = digest.digest()
    return bytes(index)


def _write_file(top: int, file: _File) -> os.stat_result:
    """Write the file below the open directory, and return its properties."""
    mode = stat.S_IMODE(file.mode)
    if stat.S_ISREG(file.mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(file.name, flags, mode, dir_fd=top)
        try:
            left = memoryview(file.content)
            while left:
                left = left[os.write(descriptor, left) :]
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)
    if stat.S_ISDIR(file.mode):
        os.mkdir(file.name, mode, dir_fd=top)
    else:
        os.symlink(os.fsdecode(file.content), file.name, dir_fd=top)
    return os.stat(file.name, dir_fd=top, follow_symlinks=False)
