"""Keeps small checkouts whole, for further ones of the same commit without git.

To start git costs more than to write a few files. What git wrote at the first checkout stays in the memory of this
process, where no job can change it.
"""

import hashlib
import os
import stat
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from solstice_orchestrator.git.objects.checkout_copy import (
    ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_ID_OFFSET,
    MAX_CHECKOUT_BYTES,
    MAX_ENTRIES,
    CheckoutCopy,
    next_entry_at,
)
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.repository import object_format
from solstice_orchestrator.processes.small_copies import INDEX, CheckoutFile, CheckoutFiles

SHARE: Final = 16
"""The part of the object cache's limit that small checkouts may have, in memory."""
MAX_BYTES: Final = 32 * 1024**2
"""The most they may have."""
_EXTENDED: Final = 0x4000
_VERSIONS: Final = (2, 3)


class _NotSmall(Exception):
    """The checkout is too large, or has something that is not simply written again."""


class SmallCheckouts:
    """The small checkouts that were used last, with at most a small part of `cache_max_bytes`."""

    def __init__(self, cache_max_bytes: int) -> None:
        self._max_bytes = min(cache_max_bytes // SHARE, MAX_BYTES)
        self._checkouts: OrderedDict[CommitKey, CheckoutCopy] = OrderedDict()
        self._size_bytes = 0

    def find(self, key: CommitKey) -> CheckoutCopy | None:
        """Return the commit's checkout if it is here."""
        checkout = self._checkouts.get(key)
        if checkout is not None:
            self._checkouts.move_to_end(key)
        return checkout

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


def _read(directory: str, digest: str) -> CheckoutCopy:
    """Read a checkout; raises _NotSmall and OSError.

    An unknown form of index raises ValueError or struct.error.
    """
    files, size_bytes, index = list[CheckoutFile](), 0, CheckoutFile(INDEX, 0)
    for file in _files(directory):
        size_bytes += ENTRY_BYTES + len(file.content)
        if size_bytes > MAX_CHECKOUT_BYTES or len(files) > MAX_ENTRIES:
            raise _NotSmall
        if file.name == INDEX:
            index = file
        else:
            files.append(file)
    index_entries = list(_entries_of(index.content, hashlib.new(digest).digest_size))
    if not {name for _, name in index_entries} <= {
        file.name for file in files if not stat.S_ISDIR(file.mode)
    }:
        raise _NotSmall
    return CheckoutCopy.of(CheckoutFiles(files, index.content, index.mode, index_entries, digest))


def _files(directory: str) -> Iterator[CheckoutFile]:
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(f"{directory}/{above}") as entries:
            for entry in entries:
                name = above + entry.name
                raw_name, mode = os.fsencode(name), entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    todo.append(f"{name}/")
                    yield CheckoutFile(raw_name, mode)
                elif stat.S_ISLNK(mode):
                    yield CheckoutFile(raw_name, mode, os.fsencode(Path(entry.path).readlink()))
                elif stat.S_ISREG(mode):
                    yield CheckoutFile(raw_name, mode, _content(entry.path))
                else:
                    raise _NotSmall


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return file.read(MAX_CHECKOUT_BYTES + 1)


def _entries_of(index: bytes, digest_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the name of each entry of an index."""
    signature, version, count = INDEX_HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in _VERSIONS:
        raise ValueError(signature, version)
    at = INDEX_HEADER.size
    for _ in range(count):
        begin = at + INDEX_ID_OFFSET + digest_bytes
        (flags,) = struct.unpack_from(">H", index, begin)
        begin += 4 if flags & _EXTENDED else 2
        end = index.index(b"\0", begin)
        yield at, index[begin:end]
        at = next_entry_at(at, end)
