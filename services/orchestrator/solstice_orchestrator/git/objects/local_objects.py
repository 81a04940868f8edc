"""Reads commits of a repository on this machine without git.

Git's server takes two processes to say what stands in a few small files. As in `pack_file.py`, the id of each object is
computed from its content, and all that is unusual is left to git: large objects, alternates, linked worktrees, very many
or very large packs.

The formats: git-scm.com/docs/gitrepository-layout, git-scm.com/docs/gitformat-pack.
"""

import os
import stat
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from solstice_orchestrator.git.objects.checkout_copy import MAX_ENTRIES
from solstice_orchestrator.git.objects.pack_file import (
    DEFLATED_MORE,
    KINDS,
    MAX_OBJECT_BYTES,
    MAX_OBJECTS_BYTES,
    OFFSET_DELTA,
    GitObject,
    LeftToGit,
    PackedObject,
    SmallPack,
    distance_to_base,
    entry_head,
    id_of,
    inflated,
    tree_entries,
    with_delta,
)

MAX_PACKS: Final = 64
"""Git packs them together from about as many on (`gc.autoPackLimit`)."""
MAX_DELTAS: Final = 64
"""The most deltas on the way to an object. Git makes chains of 50."""
MAX_NAMES_BYTES: Final = 1024**2
"""The most that is read of an index to find an object: a 256th of its names."""
FIRST_BYTES: Final = 4096
"""Read at once of a packed object: mostly all of it."""
_INDEX_HEAD: Final = b"\xfftOc\0\0\0\x02"
_UP_TO_BYTE: Final = struct.Struct(">256I")
_NAMES_AT: Final = len(_INDEX_HEAD) + _UP_TO_BYTE.size
_NUMBER: Final = struct.Struct(">I")
_CHECKSUM_BYTES: Final = 4
_FAR: Final = 0x80000000
"""Marks an offset in a further table, for packs of more than 2 GiB."""
_MODULE: Final = "160000"


class _Index(NamedTuple):
    """The open index of a pack."""

    descriptor: int
    up_to_byte: Sequence[int]
    """How many ids begin with at most each byte."""
    pack: Path


def read_commits(repository: Path, shas: Sequence[str], digest: str) -> SmallPack:
    """Return these commits with all that is in them, without their history.

    `digest` is the name of the repository's hash. Raises LeftToGit, also for what is not there, and OSError.
    """
    found, size_bytes, todo = dict[str, PackedObject](), 0, list(shas)
    with ExitStack() as opened:
        objects = _Objects(_objects_of(repository), digest, opened)
        while todo:
            object_id = todo.pop()
            if object_id not in found:
                each = found[object_id] = objects.read(object_id)
                size_bytes += len(each.content)
                if size_bytes > MAX_OBJECTS_BYTES or len(found) > MAX_ENTRIES * len(shas):
                    raise LeftToGit
                todo += _parts(object_id, each)
    return SmallPack(found, size_bytes)


def _parts(object_id: str, found: PackedObject) -> Iterator[str]:
    """Yield the ids of what a commit or directory consists of; raises LeftToGit."""
    if found.kind == "commit":
        yield SmallPack({object_id: found}, 0).tree_of(object_id)
    elif found.kind == "tree":
        tree = GitObject(id=object_id, size=len(found.content), content=found.content)
        yield from (entry_id for mode, _, entry_id in tree_entries(tree) if mode != _MODULE)


def _objects_of(repository: Path) -> Path:
    """Return the directory of the objects; raises LeftToGit when others belong to them."""
    git_dir = repository / ".git" if (repository / ".git").is_dir() else repository
    if (git_dir / "commondir").exists() or (git_dir / "objects" / "info" / "alternates").exists():
        raise LeftToGit
    return git_dir / "objects"


class _Objects:
    """Reads the objects of a repository; `opened` closes its indexes."""

    def __init__(self, directory: Path, digest: str, opened: ExitStack) -> None:
        self._directory, self._digest, self._opened = directory, digest, opened
        self._indexes: Sequence[_Index] | None = None

    def read(self, object_id: str) -> PackedObject:
        """Return an object; raises LeftToGit when it is not here."""
        try:
            found = self._loose(object_id) or self._packed(object_id)
        except (KeyError, IndexError, struct.error, zlib.error) as error:
            raise LeftToGit from error
        if found is None or id_of(found, self._digest) != object_id:
            raise LeftToGit
        return found

    def _loose(self, object_id: str) -> PackedObject | None:
        """Return an object that has a file of its own."""
        inflating = zlib.decompressobj()
        with ExitStack() as opened:
            try:
                file = _opened(self._directory / object_id[:2] / object_id[2:], opened)
            except FileNotFoundError:
                return None
            deflated = os.read(file, MAX_OBJECT_BYTES)
        head, _, content = inflating.decompress(deflated, MAX_OBJECT_BYTES).partition(b"\0")
        kind, _, _ = head.decode("ascii").partition(" ")
        if not inflating.eof:
            raise LeftToGit
        return PackedObject(kind, content)

    def _packed(self, object_id: str) -> PackedObject | None:
        if self._indexes is None:
            self._indexes = self._opened_indexes()
        for index in self._indexes:
            if (offset := _offset_in(index, bytes.fromhex(object_id))) is not None:
                with ExitStack() as opened:
                    return _object_at(_opened(index.pack, opened), offset)
        return None

    def _opened_indexes(self) -> Sequence[_Index]:
        names = [path for path in (self._directory / "pack").iterdir() if path.suffix == ".idx"]
        if len(names) > MAX_PACKS:
            raise LeftToGit
        return [self._opened_index(path) for path in names]

    def _opened_index(self, path: Path) -> _Index:
        descriptor = _opened(path, self._opened)
        head = os.pread(descriptor, _NAMES_AT, 0)
        if not head.startswith(_INDEX_HEAD):
            raise LeftToGit
        return _Index(descriptor, _UP_TO_BYTE.unpack_from(head, len(_INDEX_HEAD)), path.with_suffix(".pack"))


def _opened(path: Path, opened: ExitStack) -> int:
    """Open a plain file; nothing else, which might never answer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise LeftToGit
    return descriptor


def _offset_in(index: _Index, raw_id: bytes) -> int | None:
    """Return where in its pack an object stands; None when it is in another one."""
    length, first = len(raw_id), raw_id[0]
    begin, end = index.up_to_byte[first - 1] if first else 0, index.up_to_byte[first]
    if not 0 <= (end - begin) * length <= MAX_NAMES_BYTES:
        raise LeftToGit
    names = os.pread(index.descriptor, (end - begin) * length, _NAMES_AT + begin * length)
    at = bisect_left(range(0, len(names), length), raw_id, key=lambda at: names[at : at + length]) * length
    if names[at : at + length] != raw_id:
        return None
    number, count = begin + at // length, index.up_to_byte[-1]
    offsets_at = _NAMES_AT + count * (length + _CHECKSUM_BYTES)
    (offset,) = _NUMBER.unpack(os.pread(index.descriptor, _NUMBER.size, offsets_at + number * _NUMBER.size))
    if offset & _FAR:
        raise LeftToGit
    return int(offset)


def _object_at(pack: int, offset: int) -> PackedObject:
    """Return the object at this place of a pack; there it may be a delta."""
    deltas = list[bytes]()
    number, before, content = _entry_at(pack, offset)
    while number == OFFSET_DELTA:
        deltas.append(content)
        if len(deltas) > MAX_DELTAS:
            raise LeftToGit
        offset -= before
        number, before, content = _entry_at(pack, offset)
    for delta in reversed(deltas):
        content = with_delta(content, delta)
    return PackedObject(KINDS[number], content)


def _entry_at(pack: int, offset: int) -> tuple[int, int, bytes]:
    """Return an entry's kind, how far before it its base stands, and its data."""
    read, distance = memoryview(os.pread(pack, FIRST_BYTES, offset)), 0
    at, number, size = entry_head(read, 0)
    if number == OFFSET_DELTA:
        at, distance = distance_to_base(read, at, offset)
    if at + size + DEFLATED_MORE > FIRST_BYTES:
        read = memoryview(os.pread(pack, at + size + size // 1000 + DEFLATED_MORE, offset))
    content, _ = inflated(read, at, size)
    return number, distance, content
